"""Which row of a rollout belongs to which slot: in lock-step, or as a variable number of steps from each.

Legend: T steps, N slots, B slots of a batch, L rows of the longest stream, R rows of the table.

A book hands out rows and says in which order they form streams. It knows nothing of what is in them. The invariants of
the variable book are those of docs/ver.md; tests/experience/test_variable.py holds it to them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.pool.protocol import StepBatch

Rows = slice | Tensor
"""An index into a table's columns; a slice where it can be one."""


class Streams(Protocol):
    """The rows of a rollout as columns [L, N], one per slot, oldest first; a shorter stream ends earlier."""

    @property
    def present(self) -> Tensor | None:
        """[L, N] bool: where there is a row; None for everywhere."""
        ...

    def of(self, column: Tensor) -> Tensor:
        """[R] as [L, N]."""
        ...

    def write(self, column: Tensor, values: Tensor) -> None:
        """[L, N] into [R]."""
        ...


@dataclass(frozen=True, slots=True)
class Rectangle:
    """All streams are equally long: row t * N + slot. Nothing is moved."""

    turns: int
    num_slots: int
    present: Tensor | None = None

    def of(self, column: Tensor) -> Tensor:
        return column[: self.turns * self.num_slots].view(self.turns, self.num_slots)

    def write(self, column: Tensor, values: Tensor) -> None:
        column[: self.turns * self.num_slots] = values.reshape(-1)


class Ragged:
    """Streams of any lengths."""

    def __init__(self, rows: Tensor, present: Tensor) -> None:
        self._rows, self.present = rows, present
        self._present_rows = rows[present]

    def of(self, column: Tensor) -> Tensor:
        return column[self._rows]

    def write(self, column: Tensor, values: Tensor) -> None:
        column[self._present_rows] = values[self.present]


class Carried(NamedTuple):
    """P rows in flight that move on into the next rollout."""

    old: Tensor
    new: Tensor
    asked: Tensor
    """[P] bool: usable, if they are completed."""


class LockStep:
    """T turns of all N slots: row t * N + slot is turn t of a slot."""

    def __init__(self, steps: int, num_slots: int) -> None:
        self.num_slots, self.capacity = num_slots, steps * num_slots
        self.turns = 0

    @property
    def num_rows(self) -> int:
        """Rows that may hold something, from the first on."""
        return self.turns * self.num_slots

    def start(self) -> None:
        self.turns = 0

    def begin(self, batch: StepBatch | None) -> Rows:
        rows = slice(self.num_rows, self.num_rows + self.num_slots)
        self.turns += 1
        return rows

    def complete(self, batch: StepBatch | None) -> Rows:
        """The rows of the turn begun last."""
        return slice(self.num_rows - self.num_slots, self.num_rows)

    def columns(self, device: torch.device) -> Tensor:
        """[T, N]: the row of every turn of every slot."""
        return torch.arange(self.num_rows, device=device).view(self.turns, self.num_slots)

    def streams(self, device: torch.device) -> Streams:
        return Rectangle(self.turns, self.num_slots)

    def completed_turns(self) -> list[tuple[Tensor, Rows]]:
        """Slots and rows of every slot's first completed row, then of every slot's second, and so on."""
        slots = torch.arange(self.num_slots)
        return [(slots, slice(t * self.num_slots, (t + 1) * self.num_slots)) for t in range(self.turns)]

    def in_order(self) -> tuple[Tensor, Tensor]:
        """All rows, stream after stream, and whether each directly follows the one before it. On the host."""
        rows = torch.arange(self.num_rows).view(self.turns, self.num_slots).T
        joined = torch.ones(rows.shape, dtype=torch.bool)
        joined[:, :1] = False
        return rows.reshape(-1), joined.reshape(-1)


class Variable:
    """T * N completed rows from whichever slots are ready; rows begun and not yet completed go on into the next rollout.

    A row counts when it is completed and its simulator was not lost. It is usable if the slot was also asked for a
    decision: an agent out of the game takes part in the steps of its environment, and none of it is experience.

    The table is a ring: a rollout's rows follow those of the rollout before it, which stay readable until they are
    overwritten. With `kept`, so many rollouts before the present one are never touched. All of this is known to the
    host.
    """

    turns = None
    """Slots differ in steps."""

    def __init__(self, steps: int, num_slots: int, kept: int = 0) -> None:
        self.num_slots, self.goal = num_slots, steps * num_slots
        # Up to N rows are carried over, up to N are in flight at the end, and some may be lost.
        self._most = (steps + 2) * num_slots
        self.capacity = self.num_rows = (1 + kept) * self._most
        self._slot, self._ordinal = (np.zeros(self.capacity, np.int64) for _ in range(2))
        self._generation = np.full(self.capacity, -1)
        self._asked, self._usable = (np.zeros(self.capacity, bool) for _ in range(2))
        self._pending = np.full(num_slots, -1)
        self._decisions = np.zeros(num_slots, np.int64)
        self._now, self._first, self._begun = 0, 0, 0
        self.collected = np.zeros(num_slots, np.int64)
        """[N]: rows of each slot that count in this rollout."""

    @property
    def completed(self) -> int:
        """Rows that count in this rollout."""
        return int(self.collected.sum())

    @property
    def is_full(self) -> bool:
        """Whether this rollout is over: nothing is missing, or lost rows have left no room for another turn of all."""
        return self.completed >= self.goal or self._begun + self.num_slots > self._most

    @property
    def in_flight(self) -> np.ndarray:
        """[N] bool: slots with a row that is begun and not completed."""
        return self._pending >= 0

    @property
    def num_in_flight(self) -> int:
        return int(np.count_nonzero(self.in_flight))

    def start(self) -> Carried | None:
        """The next rollout. Rows in flight are its first."""
        slots = np.flatnonzero(self.in_flight)
        slots = slots[np.argsort((self._pending[slots] - self._first) % self.capacity)]  # as they were begun
        old = self._pending[slots]
        ordinals, asked = self._ordinal[old], self._asked[old]
        self._first = (self._first + self._begun) % self.capacity
        self._begun = 0
        self._now += 1
        self.collected[:] = 0
        if len(slots) == 0:
            return None
        new = self._take(len(slots))
        self._enter(new, slots, ordinals, asked)
        return Carried(torch.from_numpy(old.copy()), torch.from_numpy(new), torch.from_numpy(asked))

    def begin(self, batch: StepBatch | None) -> Rows:
        """Rows for new decisions of a batch's slots."""
        assert batch is not None
        slots = batch.slots
        if (self._pending[slots] >= 0).any():
            raise AssertionError(f"slots {slots[self._pending[slots] >= 0].tolist()} have a row in flight already")
        rows = self._take(len(slots))
        self._enter(rows, slots, self._decisions[slots], batch.active)
        self._decisions[slots] += 1
        return as_rows(rows)

    def complete(self, batch: StepBatch | None) -> Rows:
        """The rows in flight of a batch's slots, which now have their outcome."""
        assert batch is not None
        rows = self._pending[batch.slots]
        if (rows < 0).any():
            raise AssertionError(f"slots {batch.slots[rows < 0].tolist()} have no row in flight")
        self._pending[batch.slots] = -1
        self._usable[rows] = self._asked[rows] & ~batch.lost
        self.collected[batch.slots] += ~batch.lost
        return torch.from_numpy(rows)

    def valid(self) -> np.ndarray:
        """[R] bool: usable rows of this rollout."""
        return self._usable & (self._generation == self._now)

    def stale(self) -> np.ndarray | None:
        """[R] bool: the latest rows of the rollout before that fill this one up; None where none are needed."""
        old = (self._first - 1 - np.arange(self.capacity - self._begun)) % self.capacity
        old = old[self._usable[old] & (self._generation[old] == self._now - 1)][: self.goal - self.completed]
        if self.completed >= self.goal or len(old) == 0:
            return None
        mask = np.zeros(self.capacity, bool)
        mask[old] = True
        return mask

    def weights(self) -> np.ndarray:
        """[N]: importance weights of the slots, at most 1: rows of a slot that took more steps than the mean weigh less."""
        mean = self.completed / self.num_slots
        return np.minimum(1.0, mean / np.maximum(self.collected, 1))

    def slots_of(self, rows: np.ndarray) -> np.ndarray:
        return self._slot[rows]

    def rows_begun(self) -> np.ndarray:
        """Rows of this rollout, completed or not, oldest first."""
        return (self._first + np.arange(self._begun)) % self.capacity

    def streams(self, device: torch.device) -> Streams:
        rows, slots, at = self._by_slot(self.rows_begun())
        table = np.zeros((int(at.max(initial=0)) + 1, self.num_slots), np.int64)
        present = np.zeros(table.shape, bool)
        table[at, slots], present[at, slots] = rows, True
        return Ragged(torch.from_numpy(table).to(device), torch.from_numpy(present).to(device))

    def completed_turns(self) -> list[tuple[Tensor, Rows]]:
        """Slots and rows of every slot's first completed row, then of every slot's second, and so on."""
        rows = self.rows_begun()
        rows, slots, at = self._by_slot(rows[~np.isin(rows, self._pending)])
        turns = [np.flatnonzero(at == turn) for turn in range(int(at.max(initial=-1)) + 1)]
        return [(torch.from_numpy(slots[turn]), torch.from_numpy(rows[turn])) for turn in turns]

    def _by_slot(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows sorted by slot, oldest first; the slot of each; how many rows of its slot are before it."""
        order = np.argsort(self._slot[rows], kind="stable")
        rows = rows[order]
        slots = self._slot[rows]
        lengths = np.bincount(slots, minlength=self.num_slots)
        return rows, slots, np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)

    def in_order(self) -> tuple[Tensor, Tensor]:
        """Rows of this rollout and of the one before, stream after stream, and whether each directly follows the one
        before it. A rollout's first row of a slot follows nothing: the rows before it were learned from already."""
        rows = (self._first + self._begun + np.arange(self.capacity)) % self.capacity  # oldest first
        rows = rows[self._generation[rows] >= max(0, self._now - 1)]
        stream = self._generation[rows] * self.num_slots + self._slot[rows]
        order = np.argsort(stream, kind="stable")
        rows, stream = rows[order], stream[order]
        joined = np.zeros(len(rows), bool)
        joined[1:] = (np.diff(stream) == 0) & (np.diff(self._ordinal[rows]) == 1)
        return torch.from_numpy(rows), torch.from_numpy(joined)

    def state_dict(self) -> dict[str, Any]:
        """What the present rollout has so far; nothing may be in flight."""
        if self.in_flight.any():
            raise AssertionError(f"slots {np.flatnonzero(self.in_flight).tolist()} have a row in flight")
        rows = self.rows_begun()
        columns = {"slot": self._slot, "ordinal": self._ordinal, "asked": self._asked, "usable": self._usable}
        saved = {name: torch.from_numpy(column[rows]) for name, column in columns.items()}
        return saved | {
            "capacity": self.capacity,
            "first": self._first,
            "decisions": torch.from_numpy(self._decisions.copy()),
            "collected": torch.from_numpy(self.collected.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """A new book goes on as the saved one did, in the same places: sums over the table are the same to the bit."""
        slots = state["slot"].numpy()
        self._first = state["first"]
        rows = self._take(len(slots))
        self._enter(rows, slots, state["ordinal"].numpy(), state["asked"].numpy())
        self._pending[:] = -1
        self._usable[rows] = state["usable"].numpy()
        self.collected = state["collected"].numpy().copy()
        self._decisions = state["decisions"].numpy().copy()

    def _take(self, count: int) -> np.ndarray:
        if self._begun + count > self._most:
            raise AssertionError(f"{count} more rows wanted, but {self._begun} of {self._most} are taken")
        rows = (self._first + self._begun + np.arange(count)) % self.capacity
        self._begun += count
        return rows

    def _enter(self, rows: np.ndarray, slots: np.ndarray, ordinals: np.ndarray, asked: np.ndarray) -> None:
        self._slot[rows], self._ordinal[rows], self._asked[rows] = slots, ordinals, asked
        self._generation[rows], self._usable[rows] = self._now, False
        self._pending[slots] = rows


def as_rows(rows: np.ndarray) -> Rows:
    """A slice, if the rows are a run."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (len(rows) < 3 or (np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return torch.from_numpy(rows)
