"""`Replay`: a ring buffer of transitions on one device, sampled uniformly or by priority.

Legend: C places, B rows of a batch. Transitions are numbered in the order of insertion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.experience.config import ReplayConfig
from paceline.experience.rows import as_tensor, signed, zeros
from paceline.experience.sum_tree import SumTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """B sampled transitions."""

    rows: dict[str, Tensor]
    """[B, ...] per column. These are copies: later insertions do not change them."""
    places: Tensor
    """[B]: their places in the ring."""
    numbers: Tensor
    """[B]: their insertion numbers. They tell whether a place was overwritten since the draw."""
    weight: Tensor
    """[B] float32: importance weights. All are 1 for uniform sampling."""


class Replay:
    """Columns of C places whose memory never moves. Not thread-safe: the caller holds a lock."""

    def __init__(self, config: ReplayConfig, device: torch.device) -> None:
        self._config, self.device = config, device
        self._columns: dict[str, Tensor] = {}
        self._types: dict[str, torch.dtype] = {}
        """Of the columns. Unsigned numbers are kept as signed ones with the same bits."""
        self._numbers = torch.full((config.capacity,), -1, dtype=torch.int64, device=device)
        self._tree = SumTree(config.capacity, device) if config.prioritized else None
        self._max_priority = torch.ones((), dtype=torch.float64, device=device)
        self.inserted = 0
        """Transitions inserted so far, including overwritten ones."""
        self._first_number = 0
        """Earlier transitions are not in the ring: a restored replay lacks them, or they were dropped."""
        self._oldest_number, self._size = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        """The oldest transition's number, and `len(self)`. On the device, so a CUDA graph can capture `draw`."""

    def __len__(self) -> int:
        return min(self.inserted - self._first_number, self._config.capacity)

    @property
    def capacity(self) -> int:
        return self._config.capacity

    @property
    def bytes(self) -> int:
        """Memory of the columns, in bytes."""
        return sum(column.numel() * column.element_size() for column in self._columns.values())

    def add(self, rows: Mapping[str, Any]) -> None:
        """Insert B transitions: an array or tensor [B, ...] per column. Every call must have the same columns."""
        found = {name: v if isinstance(v, Tensor) else as_tensor(np.asarray(v)) for name, v in rows.items()}
        tensors = {name: values.to(self.device) for name, values in found.items()}
        count = len(next(iter(tensors.values())))
        if count == 0:
            return
        require_fit(count, self._config.capacity)
        if not self._columns:
            self._allocate(tensors)
        numbers = torch.arange(self.inserted, self.inserted + count, device=self.device)
        places = numbers % self._config.capacity
        for name, column in self._columns.items():
            column[places] = signed(tensors[name])
        self._numbers[places] = numbers
        self.inserted += count
        self._update_size()
        if self._tree is not None:  # a new transition should be learned from soon
            self._tree.set(places, self._max_priority.expand(count))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Drawn:
        """Sample `count` transitions with replacement. Does not synchronise with the device."""
        assert self.inserted > 0, "the replay is empty"
        shares = torch.rand(count, dtype=torch.float64, device=self.device, generator=generator)
        if self._tree is None:
            places = (self._oldest_number + (shares * self._size).long()) % self._config.capacity
            weight = torch.ones(count, device=self.device)
        else:
            # Stratified: one draw from each of `count` equal parts of the total has less variance.
            shares = (shares + torch.arange(count, device=self.device)) / count
            places = self._tree.find(shares)
            chance = self._tree.of(places) / self._tree.total
            weight = (self._size * chance).pow(-self._config.correction).float()
        rows = {name: column[places].view(self._types[name]) for name, column in self._columns.items()}
        return Drawn(rows=rows, places=places, numbers=self._numbers[places], weight=weight)

    def set_priorities(self, drawn: Drawn, errors: Tensor) -> None:
        """Set the priorities of drawn transitions from the critic's errors, [B], not negative.

        A place that was overwritten since the draw keeps its priority. So does a row whose error is not finite.
        """
        if self._tree is None:
            return
        priorities = errors.detach().to(torch.float64).clamp(min=1e-6).pow(self._config.exponent)
        finite = priorities.isfinite()
        current = (self._numbers[drawn.places] == drawn.numbers) & finite
        self._tree.set(drawn.places, torch.where(current, priorities, self._tree.of(drawn.places)))
        torch.maximum(self._max_priority, torch.where(finite, priorities, 0.0).max(), out=self._max_priority)

    def drop_oldest(self, count: int) -> None:
        """Drop the oldest `count` transitions. They are not drawn any more."""
        if count == 0:
            return
        first = self.inserted - len(self)
        if self._tree is not None:
            places = torch.arange(first, first + count, device=self.device) % self._config.capacity
            self._tree.set(places, torch.zeros(count, dtype=torch.float64, device=self.device))
            self._numbers[places] = -1  # rows that were drawn before get no priority any more
        self._first_number = first + count
        self._update_size()

    def rows(self, first: int, last: int) -> dict[str, Tensor]:
        """Transitions number `first` to `last - 1`, on the host. None may be overwritten yet."""
        places = torch.arange(first, last, device=self.device) % self._config.capacity
        return {name: column[places].cpu().view(self._types[name]) for name, column in self._columns.items()}

    def priorities(self) -> dict[str, Any]:
        """Priorities of all transitions, oldest first (None for uniform sampling), their count, the maximum ever."""
        used = len(self)
        order = torch.arange(self.inserted - used, self.inserted, device=self.device) % self._config.capacity
        found = self._tree.of(order).cpu() if self._tree is not None else None
        return {"priorities": found, "used": used, "highest": self._max_priority.cpu()}

    def state_dict(self) -> dict[str, Any]:
        """All transitions in the ring, oldest first, in one part, and their priorities."""
        oldest = self.inserted - len(self)
        return {"parts": [self.rows(oldest, self.inserted)], "inserted": self.inserted, **self.priorities()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a saved replay. Its `parts` are in order. A smaller ring takes only the latest transitions."""
        self._columns = {}
        self.inserted = state["inserted"]
        self._max_priority.copy_(state["highest"])
        kept = min(state["used"], self._config.capacity)
        self._first_number = self.inserted - kept
        self._update_size()
        if kept == 0:
            return
        end = self.inserted
        for part in reversed(state["parts"]):
            count = min(num_rows(part), end - self._first_number)
            if count == 0:
                continue
            if not self._columns:
                self._allocate(part)
            places = torch.arange(end - count, end, device=self.device) % self._config.capacity
            for name, column in self._columns.items():
                column[places] = signed(part[name][-count:]).to(self.device)
            end -= count
        numbers = torch.arange(self._first_number, self.inserted, device=self.device)
        places = numbers % self._config.capacity
        self._numbers[places] = numbers
        if self._tree is not None:
            saved = state["priorities"]
            priorities = saved[-kept:].to(self.device) if saved is not None else self._max_priority.expand(kept)
            self._tree.set(places, priorities)

    def _update_size(self) -> None:
        self._oldest_number.fill_(self.inserted - len(self))
        self._size.fill_(len(self))

    def _allocate(self, rows: Mapping[str, Tensor]) -> None:
        self._types = {name: values.dtype for name, values in rows.items()}
        self._columns = {
            name: zeros((self._config.capacity, *values.shape[1:]), signed(values[:0]).dtype, self.device)
            for name, values in rows.items()
        }


FRAMES = "frames/"
"""Columns of a part that begin with this have one row for each frame, not for each transition."""


def num_rows(part: Mapping[str, Any]) -> int:
    """The transitions of a part of a replay."""
    return next((len(column) for name, column in part.items() if not name.startswith(FRAMES)), 0)


def latest(part: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """The last `count` transitions of a part of a replay."""
    return {name: v if name.startswith(FRAMES) else v[len(v) - count :] for name, v in part.items()}


def require_fit(count: int, capacity: int) -> None:
    if count > capacity:
        raise UsageError(f"{count} transitions at once do not fit into replay.capacity {capacity}")
