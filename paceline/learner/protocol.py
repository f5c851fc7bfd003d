"""What a run needs of a learner."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from torch import nn

from paceline.learner.hyperparameters import Hyperparameters


class Learner(Protocol):
    """One policy with all that is its own: update rule, optimiser, normalisers, hyper-parameters, published weights."""

    @property
    def policy(self) -> nn.Module:
        """The weights of a checkpoint are its `state_dict`."""
        ...

    @property
    def hyperparameters(self) -> Hyperparameters:
        """They may change between two updates."""
        ...

    def learning_rate(self, progress: float) -> float:
        """The learning rate after a share `progress` of the run."""
        ...

    def publish(self) -> None:
        """Let acting copies of the policy have the present weights."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State that all ranks share, without the weights of the policy."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def rank_state(self) -> dict[str, Any]:
        """The state of this rank."""
        ...

    def load_rank_state(self, state: dict[str, Any], *, own: bool) -> None:
        """Continue from a rank's state. If not `own`, it is another rank's: the saved run did not have this rank."""
        ...

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None:
        """The simulators are where they were when `state` was saved. Only the slots in `anew` begin new episodes."""
        ...
