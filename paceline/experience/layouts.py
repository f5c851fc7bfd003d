"""Layouts: which row of a buffer belongs to which slot. `LockStep` and `Variable` are here, `Chunks` has its own file.

Legend: T steps, N slots, B slots of a batch, R rows of the buffer.

A layout hands out rows and knows nothing of what is in them. All layouts answer the same questions: which rows new
decisions get (`begin`), which rows outcomes belong to (`complete`), how many slots are in flight, and which rows an
update sees (a `Selection`). docs/ver.md has the invariants of the variable layout.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.experience.selection import Rows, Selection, as_rows
from paceline.pool.protocol import StepBatch


class Carried(NamedTuple):
    """P rows in flight that move into the next rollout."""

    old: Tensor
    new: Tensor


class Layout(Protocol):
    """Where the rows of N slots lie in a buffer of `capacity` rows."""

    num_slots: int
    capacity: int
    policies: np.ndarray | None
    """[N]: the policy that acts in each slot. None where the run has one policy."""

    @property
    def num_in_flight(self) -> int:
        """Slots with a decision whose outcome is not known yet."""
        ...

    def is_idle(self, slots: np.ndarray) -> np.ndarray:
        """[B] bool: which of `slots` have no row in flight."""
        ...

    def begin(self, batch: StepBatch | None) -> Rows:
        """Rows for new decisions of the slots of `batch`."""
        ...

    def complete(self, batch: StepBatch | None) -> Rows:
        """The rows in flight of the slots of `batch`, which now have their outcome."""
        ...

    def end_streams(self, slots: np.ndarray) -> None:
        """Other policies act in `slots` from now on. None of them is in flight."""
        ...


class LockStep:
    """T steps of all N slots. Row t * N + slot is step t of a slot. A batch may have a part of the slots: a step is
    over when all slots have begun and completed it."""

    def __init__(self, steps: int, num_slots: int) -> None:
        self.num_slots, self.capacity = num_slots, steps * num_slots
        self.policies: np.ndarray | None = None
        self._policy = np.zeros((steps, num_slots), np.int64)
        """[T, N]: the policy of each row."""
        self.num_in_flight = 0
        self._begun = 0
        """Steps so far."""

    def start(self) -> None:
        """Begin the next rollout."""
        self._begun = self.num_in_flight = 0

    def is_idle(self, slots: np.ndarray) -> np.ndarray:
        return np.full(len(slots), self.num_in_flight == 0)

    def begin(self, batch: StepBatch | None) -> Rows:
        if self.num_in_flight == 0:
            if self.policies is not None:
                self._policy[self._begun] = self.policies
            self._begun += 1
        rows = self._rows_of_step(batch)
        self.num_in_flight += self.num_slots if batch is None else len(batch)
        return rows

    def complete(self, batch: StepBatch | None) -> Rows:
        self.num_in_flight -= self.num_slots if batch is None else len(batch)
        return self._rows_of_step(batch)

    def end_streams(self, slots: np.ndarray) -> None:
        """Nothing to do: every row has its policy."""

    def select(self, policy: int | None = None) -> Selection:
        """The rollout, which may have ended early; with `policy`, the streams with rows of that policy."""
        count = self._begun * self.num_slots
        rows = np.arange(count).reshape(self._begun, self.num_slots)
        if policy is None:
            return Selection(rows=rows, slots=np.arange(self.num_slots), num_rows=count)
        used = self._policy[: self._begun] == policy
        slots = np.flatnonzero(used.any(0))
        return Selection(rows=rows[:, slots], slots=slots, num_rows=count, used=used[:, slots])

    def _rows_of_step(self, batch: StepBatch | None) -> Rows:
        first = (self._begun - 1) * self.num_slots
        if batch is None or len(batch) == self.num_slots:
            return slice(first, first + self.num_slots)
        return torch.as_tensor(batch.slots) + first


class Variable:
    """T * N completed rows from the slots that are ready. Rows in flight at the end move into the next rollout.

    A row counts when it has an outcome and its simulator was not lost. It is usable if its slot was also active. Rows
    of inactive agents are stored, but never trained on.

    The buffer is a ring. Rows of a rollout follow those of the previous rollout, which stay readable until they
    are overwritten. The last `kept` rollouts before the present one are never overwritten.
    """

    def __init__(
        self, steps: int, num_slots: int, kept: int = 0, *, weighted: bool = False, room: int | None = None
    ) -> None:
        """With `weighted`, rows of slots that took more steps than the mean weigh less. `room` is the number of rows
        that a rollout can complete, by default T * N."""
        self.num_slots, self._weighted = num_slots, weighted
        self.goal = steps * num_slots
        """Rows of a whole rollout."""
        self.policies: np.ndarray | None = None
        self._most = self.rows_needed(steps, num_slots, room=room)
        self.capacity = self.rows_needed(steps, num_slots, kept, room)
        self._slot, self._ordinal, self._policy = (np.zeros(self.capacity, np.int64) for _ in range(3))
        self._generation = np.full(self.capacity, -1)
        self._asked, self._usable = (np.zeros(self.capacity, bool) for _ in range(2))
        self._pending = np.full(num_slots, -1)
        """[N]: the row in flight; -1 for none."""
        self._decisions = np.zeros(num_slots, np.int64)
        self._now, self._first, self._begun = 0, 0, 0
        self.collected = np.zeros(num_slots, np.int64)
        """[N]: rows of each slot that count in this rollout."""

    @staticmethod
    def rows_needed(steps: int, num_slots: int, kept: int = 0, room: int | None = None) -> int:
        """Rows of the buffer. Up to N are carried over, up to N are in flight at the end, and some may be lost."""
        return (1 + kept) * ((steps * num_slots if room is None else room) + 2 * num_slots)

    @property
    def completed(self) -> int:
        """Rows that count in this rollout."""
        return int(self.collected.sum())

    @property
    def is_full(self) -> bool:
        """Whether this rollout is over: it is complete, or lost rows left no room for another step of all slots."""
        return self.completed >= self.goal or not self.has_room

    @property
    def has_room(self) -> bool:
        """Whether another step of all slots fits into this rollout."""
        return self._begun + self.num_slots <= self._most

    @property
    def num_in_flight(self) -> int:
        return int(np.count_nonzero(self._pending >= 0))

    def is_idle(self, slots: np.ndarray) -> np.ndarray:
        return self._pending[slots] < 0

    def start(self) -> Carried | None:
        """Begin the next rollout. Rows in flight are its first."""
        slots = np.flatnonzero(self._pending >= 0)
        slots = slots[
            np.argsort((self._pending[slots] - self._first) % self.capacity)
        ]  # in the order of their decisions
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
        return Carried(torch.from_numpy(old.copy()), torch.from_numpy(new))

    def begin(self, batch: StepBatch | None) -> Rows:
        assert batch is not None
        slots = batch.slots
        require_idle(self._pending, slots)
        rows = self._take(len(slots))
        self._enter(rows, slots, self._decisions[slots], batch.active)
        self._decisions[slots] += 1
        return as_rows(rows)

    def complete(self, batch: StepBatch | None) -> Rows:
        assert batch is not None
        rows = take_pending(self._pending, batch.slots)
        self._usable[rows] = self._asked[rows] & ~batch.lost
        self.collected[batch.slots] += ~batch.lost
        return torch.from_numpy(rows)

    def end_streams(self, slots: np.ndarray) -> None:
        """Nothing to do: every row has its policy."""

    def select(self, policy: int | None = None) -> Selection:
        """The rollout; with `policy`, the rows of that policy. Where it ended early, the latest rows of the previous
        rollout fill it up."""
        begun = self.rows_begun()
        if policy is not None:
            begun = begun[self._policy[begun] == policy]
        order = np.argsort(self._slot[begun], kind="stable")
        rows = begun[order]
        slots = self._slot[rows]
        lengths = np.bincount(slots, minlength=self.num_slots)
        at = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        table = np.zeros((int(at.max(initial=0)) + 1, self.num_slots), np.int64)
        present, completed = (np.zeros(table.shape, bool) for _ in range(2))
        table[at, slots], present[at, slots], completed[at, slots] = rows, True, ~np.isin(rows, self._pending)
        return Selection(
            rows=table,
            slots=np.arange(self.num_slots),
            num_rows=self.capacity,
            present=present,
            completed=completed,
            weights=self._weights() if self._weighted else None,
            older=self._older(policy),
        )

    def _older(self, policy: int | None) -> tuple[np.ndarray, np.ndarray] | None:
        """The latest usable rows of the previous rollout, as many as this one lacks, stream after stream; with
        `policy`, those of them that are its own."""
        rows = (self._first - 1 - np.arange(self.capacity - self._begun)) % self.capacity  # newest first
        rows = rows[self._usable[rows] & (self._generation[rows] == self._now - 1)]
        rows = rows[: max(0, self.goal - self.completed)][::-1]
        if policy is not None:
            rows = rows[self._policy[rows] == policy]
        if len(rows) == 0:
            return None
        rows = rows[np.argsort(self._slot[rows], kind="stable")]
        joined = np.zeros(len(rows), bool)
        joined[1:] = (np.diff(self._slot[rows]) == 0) & (np.diff(self._ordinal[rows]) == 1)
        return rows, joined

    def _weights(self) -> np.ndarray:
        """[N], at most 1."""
        return np.minimum(1.0, self.completed / self.num_slots / np.maximum(self.collected, 1))

    def rows_begun(self) -> np.ndarray:
        """Rows of this rollout, completed or not, oldest first."""
        return (self._first + np.arange(self._begun)) % self.capacity

    def state_dict(self) -> dict[str, Any]:
        """The present rollout so far, with the rows in flight."""
        rows = self.rows_begun()
        columns = {"slot": self._slot, "ordinal": self._ordinal, "asked": self._asked, "usable": self._usable}
        columns["policy"] = self._policy
        saved = {name: torch.from_numpy(column[rows]) for name, column in columns.items()}
        return saved | {
            "capacity": self.capacity,
            "first": self._first,
            "pending": torch.from_numpy(self._pending.copy()),
            "decisions": torch.from_numpy(self._decisions.copy()),
            "collected": torch.from_numpy(self.collected.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue a saved rollout, in the same rows, so that sums over the buffer are the same to the bit."""
        slots = state["slot"].numpy()
        self._first = state["first"]
        rows = self._take(len(slots))
        self._enter(rows, slots, state["ordinal"].numpy(), state["asked"].numpy())
        self._pending[:] = state["pending"].numpy() if "pending" in state else -1
        self._usable[rows] = state["usable"].numpy()
        self._policy[rows] = state["policy"].numpy() if "policy" in state else 0
        self.collected = state["collected"].numpy().copy()
        self._decisions = state["decisions"].numpy().copy()

    def _take(self, count: int) -> np.ndarray:
        assert self._begun + count <= self._most, f"{count} more rows wanted, {self._begun} of {self._most} are taken"
        rows = (self._first + self._begun + np.arange(count)) % self.capacity
        self._begun += count
        return rows

    def _enter(self, rows: np.ndarray, slots: np.ndarray, ordinals: np.ndarray, asked: np.ndarray) -> None:
        self._slot[rows], self._ordinal[rows], self._asked[rows] = slots, ordinals, asked
        self._generation[rows], self._usable[rows] = self._now, False
        self._pending[slots] = rows
        if self.policies is not None:
            self._policy[rows] = self.policies[slots]


def require_idle(pending: np.ndarray, slots: np.ndarray) -> None:
    """Refuse to begin rows of slots that have a row in flight."""
    if (pending[slots] >= 0).any():
        raise AssertionError(f"slots {slots[pending[slots] >= 0].tolist()} have a row in flight already")


def take_pending(pending: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """The rows in flight of `slots`, which are in flight no longer."""
    rows = pending[slots]
    if (rows < 0).any():
        raise AssertionError(f"slots {slots[rows < 0].tolist()} have no row in flight")
    pending[slots] = -1
    return rows
