"""What a run needs of an agent: its policy, and everything that a checkpoint must have to go on."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from paceline.pool.protocol import StepBatch


class Agent(Protocol):
    """One rank's share of what is trained."""

    @property
    def policy(self) -> nn.Module:
        """What is trained for: a checkpoint's weights are its `state_dict`."""
        ...

    def learning_rate(self, progress: float) -> float:
        """After a share `progress` of the run."""
        ...

    def state(self) -> dict[str, Any]:
        """What is the same on all ranks, beside the policy."""
        ...

    def observe(self, batch: StepBatch) -> None:
        """Record the outcomes of steps that finished after the training loop was stopped."""
        ...

    def rank_state(self, *, stopped: bool = False) -> dict[str, Any]:
        """What is this rank's own. With `stopped`, the training loop was interrupted, and what it had collected is given up."""
        ...

    def checkpointed(self, rank_state: dict[str, Any]) -> None:
        """A checkpoint with this state was written."""
        ...

    def load(self, weights: dict[str, Tensor], state: dict[str, Any], rank_state: dict[str, Any], *, own: bool) -> None:
        """Take over what was learned; simulators begin new episodes. `rank_state` is this rank's `own` or, where it was no
        part of the saved run, another's."""
        ...

    def close(self) -> None:
        """Nothing is asked of it any more."""
        ...

    def restore_episodes(self, rank_state: dict[str, Any], anew: np.ndarray) -> None:
        """After `load`: the simulators, too, are where they were when `rank_state` was taken. Only the slots in `anew` begin new
        episodes."""
        ...
