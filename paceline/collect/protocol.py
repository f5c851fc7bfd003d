"""The interface between a run and its sampler. `Sampler` and `ReplaySampler` implement it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from paceline.pool.protocol import StepBatch


class Collection(Protocol):
    """One rank's slots and experience, and what a checkpoint keeps of them."""

    def observe_stopped(self, batch: StepBatch) -> None:
        """Outcomes that arrive after the training loop was stopped."""
        ...

    @property
    def has_advanced(self) -> bool:
        """Whether a stopped iteration leaves something that a checkpoint keeps: more than was restored."""
        ...

    def rank_state(self, *, stopped: bool) -> dict[str, Any]:
        """The state of this rank. If it was `stopped` in an iteration, the rows of that iteration are dropped."""
        ...

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Continue from this rank's state. Slots begin new episodes."""
        ...

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None:
        """The simulators are where they were when `state` was saved. Only the slots in `anew` begin new episodes."""
        ...

    def saved(self, state: dict[str, Any]) -> None:
        """A checkpoint with this state was written."""
        ...

    def close(self) -> None: ...
