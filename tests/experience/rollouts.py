"""A rollout for tests: a buffer and its training batch as one object."""

from __future__ import annotations

from typing import Any

import torch

from paceline.experience.layouts import LockStep
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import Truncations
from paceline.experience.training_batch import TrainingBatch


class Rollout:
    """Rows go into `buffer`; `finish` makes them the rows of `batch`. Other attributes are those of the batch."""

    def __init__(
        self,
        steps: int,
        num_slots: int,
        device: torch.device,
        truncation_gap: int = 1,
        *,
        layout: Any = None,
        weighted: bool = False,
        spare: bool = False,
    ) -> None:
        self.layout = layout or LockStep(steps, num_slots)
        self.buffer = RolloutBuffer(self.layout, device, truncation_gap=truncation_gap, spare=spare)
        self.batch = TrainingBatch(self.buffer, weighted=weighted)
        self._is_selected = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    def clear(self) -> None:
        self._is_selected = False
        self.buffer.start_rollout()

    def begin(self, *arguments: Any) -> None:
        self._is_selected = False
        self.buffer.begin(*arguments)

    def complete(self, *arguments: Any) -> None:
        self._is_selected = False
        self.buffer.complete(*arguments)

    def select(self) -> TrainingBatch:
        """Let the batch see what was collected."""
        if not self._is_selected:
            self.batch.select(self.layout.select(), self.buffer.take_truncations())
            self._is_selected = True
        return self.batch

    def cuts(self) -> Truncations | None:
        return self.select().truncations

    def finish(
        self,
        last_value: torch.Tensor,
        truncations: Truncations | None = None,
        truncated_value: torch.Tensor | None = None,
        *,
        discount: float,
        trace_decay: float,
        advantages: bool = True,
    ) -> None:
        self.select()
        if truncations is not None:
            self.batch.truncations = truncations
        self.batch.set_next_values(last_value, truncated_value)
        if advantages:
            self.batch.set_advantages(discount, trace_decay)


def refill(rollout: Rollout, other: Rollout) -> None:
    """Put other data into the same memory."""
    for mine, theirs in ((rollout.buffer, other.buffer), (rollout.batch, other.batch)):
        for name, value in vars(theirs).items():
            if isinstance(value, torch.Tensor):
                getattr(mine, name).copy_(value)
            elif name in ("obs", "actions"):
                for key, tensor in value.items():
                    getattr(mine, name)[key].copy_(tensor)


def move(rollout: Rollout, device: torch.device) -> None:
    """Move the memory of a rollout to a device, once."""
    for part in (rollout.buffer, rollout.batch):
        part.device = device
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor):
                setattr(part, name, value.to(device))
            elif name in ("obs", "actions"):
                setattr(part, name, {key: tensor.to(device) for key, tensor in value.items()})
    rollout.buffer._writable.clear()
