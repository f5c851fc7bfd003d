"""`Chunks`: the layout of systems whose collection never stops. A chunk is T consecutive rows of one slot.

Legend: T steps, N slots, K chunks of a batch, R rows of the buffer.

A slot fills its chunk, takes a free one and continues. A full chunk waits for its batch, is learned from, and is free
again. Only chunk numbers pass between threads, never rows. One thread collects (`begin`, `complete`, `take`), another
may learn and then `release`.

A chunk has rows of one policy. Where another policy begins to act in a slot, the slot's chunk is closed early.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch

from paceline.experience.layouts import require_idle, take_pending
from paceline.experience.selection import Rows, Selection, as_rows
from paceline.pool.protocol import StepBatch


class Chunks:
    """Time-major: row t of chunk c is at t * C + c, for C chunks. Slots in lock-step write to adjacent memory."""

    def __init__(
        self,
        steps: int,
        num_slots: int,
        batch: int,
        waiting: int,
        learned: Sequence[int] = (0,),
        *,
        changing: bool = False,
    ) -> None:
        """The policies `learned` learn. For each there is room for `waiting` batches of `batch` chunks, plus one that
        is learned from and one that is collected. Chunks of other policies are free as soon as they are full.
        `changing`: the policy of a slot may change."""
        self.steps, self.num_slots = steps, num_slots
        self.capacity = self.rows_needed(steps, num_slots, batch, waiting, len(learned), changing=changing)
        self.policies: np.ndarray | None = None
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
        self._policy = np.zeros(self.count, np.int64)
        """The policy of each chunk."""
        self._length = np.full(self.count, steps)
        """Rows of each chunk. Those that are closed early have fewer than T."""
        self._free = deque(range(num_slots, self.count))
        self._full: dict[int, deque[int]] = {policy: deque() for policy in learned}
        """By policy."""

    @staticmethod
    def rows_needed(
        steps: int, num_slots: int, batch: int, waiting: int, learners: int = 1, *, changing: bool = False
    ) -> int:
        """Rows of the buffer. Every slot has a chunk, and in one step all slots may need another. Where policies
        change, they may need two: a chunk can be full before the step, and the next one closed after it."""
        return ((3 if changing else 2) * num_slots + learners * batch * (waiting + 2)) * steps

    def num_full(self, policy: int = 0) -> int:
        """Chunks of a policy that wait for their batch."""
        return len(self._full[policy])

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
        if self.policies is not None:
            new = slots[self._begun[slots] == 0]
            self._policy[self._chunk[new]] = self.policies[new]
        rows = self._begun[slots] * self.count + self._chunk[slots]
        self._begun[slots] += 1
        self._pending[slots] = rows
        return as_rows(rows)

    def complete(self, batch: StepBatch | None) -> Rows:
        assert batch is not None
        return torch.from_numpy(take_pending(self._pending, batch.slots))

    def end_streams(self, slots: np.ndarray) -> None:
        """Close the chunks of `slots`: other policies act there from now on."""
        for slot in slots[self._begun[slots] > 0].tolist():
            chunk = self._chunk[slot]
            self._length[chunk] = self._begun[slot]
            self._move_on(slot)
            # Its last row ends an episode or was lost: the value after it is never used.
            self._after[chunk] = (self._length[chunk] - 1) * self.count + chunk

    def take(self, count: int, policy: int = 0) -> Selection:
        """The `count` chunks of a policy that have been full for longest."""
        chunks = np.array([self._full[policy].popleft() for _ in range(count)], np.int64)
        lengths = self._length[chunks]
        used = np.arange(self.steps)[:, None] < lengths if (lengths < self.steps).any() else None
        return Selection(
            rows=np.arange(self.steps)[:, None] * self.count + chunks[None, :],
            slots=self._slot[chunks],
            num_rows=self.capacity,
            following=self._after[chunks],
            used=used,
        )

    def release(self, selection: Selection) -> None:
        """A batch was learned from: its chunks may be filled again."""
        self._free.extend(selection.rows[0].tolist())  # row 0 of chunk c is row c of the buffer

    def _move_on(self, slot: int) -> None:
        assert self._free, "no chunk is free: batches were not taken, or not released"
        old, new = self._chunk[slot], self._free.popleft()
        self._chunk[slot], self._begun[slot], self._slot[new], self._length[new] = new, 0, slot, self.steps
        self._after[old] = new
        policy = self._policy[old]
        self._full.get(int(policy), self._free).append(int(old))
