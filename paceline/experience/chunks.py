"""Which row of a table belongs to which slot when collection never stops: chunks of T consecutive rows of a slot.

Legend: T steps, N slots, K chunks of a batch, R rows of the table.

A slot fills its chunk, takes a free one, and goes on. A full chunk waits for its batch, is learned from, and is free again.
Only numbers of chunks change hands, never rows. One thread collects (`begin`, `complete`, `take`), another may learn and
then `release`.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from torch import Tensor

from paceline.experience.layouts import Rows, as_rows
from paceline.pool.protocol import StepBatch


class Chunks:
    """Rows of all slots. Row t * C + c is the t-th of chunk c, of C: slots that keep pace write to adjacent rows."""

    turns = None
    """Slots differ in steps."""

    def __init__(self, steps: int, num_slots: int, batch: int, waiting: int) -> None:
        """Room for `waiting` batches of `batch` chunks, beside one that is learned from and one that is gathered."""
        self.steps, self.num_slots = steps, num_slots
        # Every slot has a chunk, and in one turn all may come to need another.
        count = 2 * num_slots + batch * (waiting + 2)
        self.count = count
        self.capacity = self.num_rows = count * steps
        self._chunk = np.arange(num_slots)
        self._begun = np.zeros(num_slots, np.int64)
        """[N]: rows begun in each slot's chunk."""
        self._pending = np.full(num_slots, -1)
        """[N]: the row in flight; -1 for none."""
        self._slot = np.full(count, -1)
        self._slot[:num_slots] = np.arange(num_slots)
        self._after = np.full(count, -1)
        """Of a full chunk: the row that its slot went on with."""
        self._free = deque(range(num_slots, count))
        self._full: deque[int] = deque()

    @property
    def num_full(self) -> int:
        """Chunks that wait for their batch."""
        return len(self._full)

    @property
    def num_in_flight(self) -> int:
        return int(np.count_nonzero(self._pending >= 0))

    def begin(self, batch: StepBatch | None) -> Rows:
        """Rows for new decisions of a batch's slots. A chunk is full when its slot begins the next."""
        assert batch is not None
        slots = batch.slots
        if (self._pending[slots] >= 0).any():
            raise AssertionError(f"slots {slots[self._pending[slots] >= 0].tolist()} have a row in flight already")
        for slot in slots[self._begun[slots] == self.steps].tolist():
            self._move_on(slot)
        rows = self._begun[slots] * self.count + self._chunk[slots]
        self._begun[slots] += 1
        self._pending[slots] = rows
        return as_rows(rows)

    def complete(self, batch: StepBatch | None) -> Rows:
        """The rows in flight of a batch's slots, which now have their outcome."""
        assert batch is not None
        rows = self._pending[batch.slots]
        if (rows < 0).any():
            raise AssertionError(f"slots {batch.slots[rows < 0].tolist()} have no row in flight")
        self._pending[batch.slots] = -1
        return torch.from_numpy(rows)

    def take(self, count: int) -> ChunkBatch:
        """The `count` chunks that have been full for longest."""
        chunks = np.array([self._full.popleft() for _ in range(count)])
        return ChunkBatch(self.steps, self.count, chunks, self._slot[chunks], self._after[chunks])

    def release(self, batch: ChunkBatch) -> None:
        """A batch was learned from: its chunks may be filled again."""
        self._free.extend(batch.chunks.tolist())

    def _move_on(self, slot: int) -> None:
        if not self._free:
            raise AssertionError("no chunk is free: batches were not taken, or not released")
        old, new = self._chunk[slot], self._free.popleft()
        self._chunk[slot], self._begun[slot], self._slot[new] = new, 0, slot
        self._after[old] = new
        self._full.append(int(old))


class ChunkBatch:
    """K full chunks, of `count` that there are, as columns [T, K], for one update."""

    def __init__(self, steps: int, count: int, chunks: np.ndarray, slots: np.ndarray, after: np.ndarray) -> None:
        self.turns, self.num_slots, self._count = steps, len(chunks), count
        self.capacity = self.num_rows = steps * count
        self.chunks, self.slots = chunks, slots
        self.after = torch.from_numpy(after)
        """[K]: the row that follows each column, in a chunk of its own that is not part of an earlier batch."""
        self.rows = torch.from_numpy(np.arange(steps)[:, None] * count + chunks[None, :])

    def holds(self, rows: Tensor) -> Tensor:
        """[...] bool: which of `rows` are in these chunks."""
        return torch.isin(rows % self._count, torch.from_numpy(self.chunks))

    def columns(self, device: torch.device) -> Tensor:
        return self.rows.to(device)

    def streams(self, device: torch.device) -> Columns:
        return Columns(self.columns(device))

    def completed_turns(self) -> list[tuple[Tensor, Rows]]:
        """Slots and rows turn by turn; of two chunks of a slot the older one's first."""
        order = np.array([np.count_nonzero(self.slots[:k] == slot) for k, slot in enumerate(self.slots)])
        groups = [np.flatnonzero(order == number) for number in range(order.max() + 1)]
        return [
            (torch.from_numpy(self.slots[group]), self.rows[turn, group])
            for group in groups
            for turn in range(self.turns)
        ]

    def in_order(self) -> tuple[Tensor, Tensor]:
        """All rows, chunk after chunk, and whether each directly follows the one before it. On the host."""
        joined = torch.ones(self.num_slots, self.turns, dtype=torch.bool)
        joined[:, 0] = False
        return self.rows.T.reshape(-1), joined.reshape(-1)


class Columns:
    """Equally long streams whose rows lie anywhere."""

    present = None

    def __init__(self, rows: Tensor) -> None:
        self._rows = rows

    def of(self, column: Tensor) -> Tensor:
        return column[self._rows]

    def write(self, column: Tensor, values: Tensor) -> None:
        column[self._rows] = values
