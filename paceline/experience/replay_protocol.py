"""What learners, collection and archive need of a replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.experience.replay import Drawn


class TransitionReplay(Protocol):
    """A ring of transitions, which are numbered in the order of insertion. See `Replay`."""

    device: torch.device

    def __len__(self) -> int: ...

    @property
    def inserted(self) -> int:
        """Transitions inserted so far, including overwritten ones."""

    @property
    def capacity(self) -> int: ...

    @property
    def bytes(self) -> int:
        """Memory, in bytes."""

    def add(self, rows: Mapping[str, Any]) -> None:
        """Insert B transitions: an array or tensor [B, ...] per column."""

    def draw(self, count: int, generator: torch.Generator | None = None) -> Drawn:
        """Sample `count` transitions with replacement."""

    def set_priorities(self, drawn: Drawn, errors: Tensor) -> None:
        """Set the priorities of drawn transitions from errors [B], not negative."""

    def rows(self, first: int, last: int) -> dict[str, Tensor]:
        """Transitions number `first` to `last - 1` in the form in which they are saved, a part, on the host."""

    def priorities(self) -> dict[str, Any]:
        """Priorities of all transitions, oldest first (None for uniform sampling), their count, the maximum ever."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved replay: `parts` in order, and what `priorities` gave."""
