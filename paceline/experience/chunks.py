"""`Chunks`: the layout of systems whose collection never stops. A chunk is T consecutive rows of one slot.

Legend: T steps, N slots, K chunks of a batch, R rows of the buffer.

A slot fills its chunk, takes a free one and continues. A full chunk waits for its batch, is learned from, and is free
again. Only chunk numbers pass between threads, never rows. One thread collects (`begin`, `complete`, `take`), another
may learn and then `release`.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from paceline.experience.layouts import require_idle, take_pending
from paceline.experience.selection import Rows, Selection, as_rows
from paceline.pool.protocol import StepBatch


class Chunks:
    """Time-major: row t of chunk c is at t * C + c, for C chunks. Slots in lock-step write to adjacent memory."""

    def __init__(self, steps: int, num_slots: int, batch: int, waiting: int) -> None:
        """Room for `waiting` batches of `batch` chunks, plus one that is learned from and one that is collected."""
        self.steps, self.num_slots = steps, num_slots
        self.capacity = self.rows_needed(steps, num_slots, batch, waiting)
        self.count = self.capacity // steps
        self._chunk = np.arange(num_slots)
        self._begun = np.zeros(num_slots, np.int64)
        """[N]: rows begun in each slot's chunk."""
        self._pending = np.full(num_slots, -1)
        """[N]: the row in flight; -1 for none."""
        self._slot = np.full(self.count, -1)
        self._slot[:num_slots] = np.arange(num_slots)
        self._after = np.full(self.count, -1)
        """For a full chunk, the row that its slot continued with."""
        self._free = deque(range(num_slots, self.count))
        self._full: deque[int] = deque()

    @staticmethod
    def rows_needed(steps: int, num_slots: int, batch: int, waiting: int) -> int:
        """Rows of the buffer. Every slot has a chunk, and in one step all slots may need another."""
        return (2 * num_slots + batch * (waiting + 2)) * steps

    @property
    def num_full(self) -> int:
        """Chunks that wait for their batch."""
        return len(self._full)

    @property
    def num_in_flight(self) -> int:
        return int(np.count_nonzero(self._pending >= 0))

    def is_idle(self, slots: np.ndarray) -> np.ndarray:
        return self._pending[slots] < 0

    def begin(self, batch: StepBatch | None) -> Rows:
        """Rows for new decisions. A chunk is full when its slot begins the next one."""
        assert batch is not None
        slots = batch.slots
        require_idle(self._pending, slots)
        for slot in slots[self._begun[slots] == self.steps].tolist():
            self._move_on(slot)
        rows = self._begun[slots] * self.count + self._chunk[slots]
        self._begun[slots] += 1
        self._pending[slots] = rows
        return as_rows(rows)

    def complete(self, batch: StepBatch | None) -> Rows:
        assert batch is not None
        return torch.from_numpy(take_pending(self._pending, batch.slots))

    def take(self, count: int) -> Selection:
        """The `count` chunks that have been full for longest."""
        chunks = np.array([self._full.popleft() for _ in range(count)])
        return Selection(
            rows=np.arange(self.steps)[:, None] * self.count + chunks[None, :],
            slots=self._slot[chunks],
            num_rows=self.capacity,
            following=self._after[chunks],
        )

    def release(self, selection: Selection) -> None:
        """A batch was learned from: its chunks may be filled again."""
        self._free.extend(selection.rows[0].tolist())  # row 0 of chunk c is row c of the buffer

    def _move_on(self, slot: int) -> None:
        assert self._free, "no chunk is free: batches were not taken, or not released"
        old, new = self._chunk[slot], self._free.popleft()
        self._chunk[slot], self._begun[slot], self._slot[new] = new, 0, slot
        self._after[old] = new
        self._full.append(int(old))
