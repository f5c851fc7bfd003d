"""`Replay`: a ring of transitions on one device, drawn from uniformly or by priority.

Legend: C places, B rows of a batch.
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
from paceline.experience.rows import as_tensor
from paceline.experience.sum_tree import SumTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """B transitions to learn from."""

    rows: dict[str, Tensor]
    """[B, ...] by column: copies, so that what is inserted later changes nothing."""
    places: Tensor
    """[B]: where they lie."""
    numbers: Tensor
    """[B]: the how-manieth insertion each was. A place that has another by now was overwritten."""
    weight: Tensor
    """[B] float32: importance weights; 1 where drawing is uniform."""


class Replay:
    """Columns of C places whose memory never moves. One thread inserts and draws at a time."""

    def __init__(self, config: ReplayConfig, device: torch.device) -> None:
        self._config, self.device = config, device
        self._columns: dict[str, Tensor] = {}
        self._number = torch.full((config.capacity,), -1, dtype=torch.int64, device=device)
        self._tree = SumTree(config.capacity, device) if config.prioritized else None
        self._highest = torch.ones((), dtype=torch.float64, device=device)
        self.inserted = 0
        """Transitions so far, overwritten ones included."""
        self._first = 0
        """The number of the first that there is, but for those that were overwritten: one that was read back may lack some."""
        self._oldest, self._used = (torch.zeros((), dtype=torch.int64, device=device) for _ in range(2))
        """The number of the oldest that is there, and how many are: on the device, so that a draw can be recorded."""

    def __len__(self) -> int:
        return min(self.inserted - self._first, self._config.capacity)

    @property
    def capacity(self) -> int:
        return self._config.capacity

    @property
    def bytes(self) -> int:
        """Memory of the columns."""
        return sum(column.numel() * column.element_size() for column in self._columns.values())

    def add(self, rows: Mapping[str, Any]) -> None:
        """Insert B transitions, given as arrays or tensors [B, ...] by column; the same columns every time."""
        found = {name: v if isinstance(v, Tensor) else as_tensor(np.asarray(v)) for name, v in rows.items()}
        tensors = {name: values.to(self.device) for name, values in found.items()}
        count = len(next(iter(tensors.values())))
        if count == 0:
            return
        if count > self._config.capacity:
            raise UsageError(f"{count} transitions at once do not fit into replay.capacity {self._config.capacity}")
        if not self._columns:
            self._columns = {name: self._column(values) for name, values in tensors.items()}
        numbers = torch.arange(self.inserted, self.inserted + count, device=self.device)
        places = numbers % self._config.capacity
        for name, column in self._columns.items():
            column[places] = tensors[name]
        self._number[places] = numbers
        self.inserted += count
        self._note_size()
        if self._tree is not None:  # what was never learned from comes before everything else
            self._tree.set(places, self._highest.expand(count))

    def draw(self, count: int, generator: torch.Generator | None = None) -> Drawn:
        """`count` transitions, with replacement. The host decides nothing about which: it can be recorded."""
        if self.inserted == 0:
            raise AssertionError("nothing was inserted yet")
        shares = torch.rand(count, dtype=torch.float64, device=self.device, generator=generator)
        if self._tree is None:
            places = (self._oldest + (shares * self._used).long()) % self._config.capacity
            weight = torch.ones(count, device=self.device)
        else:
            # One draw from each of `count` equal parts of the total: as likely, and spread more evenly.
            shares = (shares + torch.arange(count, device=self.device)) / count
            places = self._tree.find(shares)
            chance = self._tree.of(places) / self._tree.total
            weight = (self._used * chance).pow(-self._config.correction).float()
        rows = {name: column[places] for name, column in self._columns.items()}
        return Drawn(rows=rows, places=places, numbers=self._number[places], weight=weight)

    def set_priorities(self, drawn: Drawn, errors: Tensor) -> None:
        """Of what was drawn, by how wrong the critic was about it, [B] and not negative. What was overwritten since keeps
        the priority of its successor, and a row whose error is not finite keeps its own."""
        if self._tree is None:
            return
        priorities = errors.detach().to(torch.float64).clamp(min=1e-6).pow(self._config.exponent)
        finite = priorities.isfinite()
        current = (self._number[drawn.places] == drawn.numbers) & finite
        self._tree.set(drawn.places, torch.where(current, priorities, self._tree.of(drawn.places)))
        torch.maximum(self._highest, torch.where(finite, priorities, 0.0).max(), out=self._highest)

    def rows(self, first: int, last: int) -> dict[str, Tensor]:
        """What was inserted as number `first` and on, up to but without `last`; none of it may be overwritten. On the host."""
        places = torch.arange(first, last, device=self.device) % self._config.capacity
        return {name: column[places].cpu() for name, column in self._columns.items()}

    def priorities(self) -> dict[str, Any]:
        """Of all that is there, oldest first (None where there are none), how many that are, and the highest ever."""
        used = len(self)
        order = torch.arange(self.inserted - used, self.inserted, device=self.device) % self._config.capacity
        found = self._tree.of(order).cpu() if self._tree is not None else None
        return {"priorities": found, "used": used, "highest": self._highest.cpu()}

    def state_dict(self) -> dict[str, Any]:
        """What has been inserted and is still there, oldest first."""
        oldest = self.inserted - len(self)
        return {"columns": self.rows(oldest, self.inserted), "inserted": self.inserted, **self.priorities()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on as the saved one did. One of another capacity takes over the latest of what it had."""
        self.inserted = state["inserted"]
        self._highest.copy_(state["highest"])
        kept = min(state["used"], self._config.capacity)
        self._first = self.inserted - kept
        self._note_size()
        if kept == 0:
            return
        numbers = torch.arange(self._first, self.inserted, device=self.device)
        places = numbers % self._config.capacity
        latest = {name: values[-kept:].to(self.device) for name, values in state["columns"].items()}
        self._columns = {name: self._column(values) for name, values in latest.items()}
        for name, column in self._columns.items():
            column[places] = latest[name]
        self._number[places] = numbers
        if self._tree is not None:
            saved = state["priorities"]
            priorities = saved[-kept:].to(self.device) if saved is not None else self._highest.expand(kept)
            self._tree.set(places, priorities)

    def _note_size(self) -> None:
        self._oldest.fill_(self.inserted - len(self))
        self._used.fill_(len(self))

    def _column(self, example: Tensor) -> Tensor:
        return torch.zeros((self._config.capacity, *example.shape[1:]), dtype=example.dtype, device=self.device)
