"""`KindSlots`: the slots of one kind of agents, as its policies know them: numbered from 0, with the kind's own names.

With K kinds, policy p plays the agents of kind p modulo K. With one kind, the numbers and names are those of the pool.

Legend: N slots of the pool, M of the kind, B slots of a batch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from paceline.pool.batches import rows_of
from paceline.pool.protocol import Array, PoolSpec, StepBatch


class KindSlots:
    """The slots of kind `number` of a pool, and the policies that play there."""

    def __init__(self, whole: PoolSpec, number: int) -> None:
        self.whole, self.number, self.kind = whole, number, whole.kinds[number]
        self.is_only = len(whole.kinds) == 1
        self.spec = whole if self.is_only else whole.of_kind(self.kind)
        """What a policy of this kind sees."""
        self.slots = whole.kind_slots(self.kind)
        """[M], ascending: their numbers in the pool."""
        self._local = np.full(whole.num_slots, -1)
        """[N]: the kind's own number of a slot; -1 for slots of other kinds."""
        self._local[self.slots] = np.arange(len(self.slots))

    def policies(self, count: int) -> range:
        """Those of the policies 0 to `count` - 1 that play this kind."""
        return range(self.number, count, len(self.whole.kinds))

    def local(self, slots: np.ndarray) -> np.ndarray:
        """The kind's own numbers of those of `slots` that belong to it."""
        if self.is_only:
            return slots
        numbers = self._local[slots]
        return numbers[numbers >= 0]

    def part(self, batch: StepBatch, rows: Array) -> StepBatch:
        """A copy of `rows` of a batch, all of this kind. Its `final_obs` hold until the next `recv` only."""
        if self.is_only:
            return rows_of(batch, rows)
        kind, obs, final = self.kind, batch.obs, batch.final_obs
        found = rows_of(replace(batch, obs=kind.obs_of(obs) if obs else {}, final_obs={}), rows)
        found.slots = self._local[found.slots]
        if final:
            found.final_obs = {name: _OfSlots(column, self.slots) for name, column in kind.obs_of(final).items()}
        return found


class _OfSlots:
    """A column of the pool, indexed by a kind's own slot numbers. Only rows that are asked for are copied."""

    def __init__(self, column: np.ndarray, slots: np.ndarray) -> None:
        self._column, self._slots = column, slots

    def __getitem__(self, local: np.ndarray) -> np.ndarray:
        return self._column[self._slots[local]]


def all_kinds(spec: PoolSpec) -> list[KindSlots]:
    """The slots of every kind of a pool's agents."""
    return [KindSlots(spec, number) for number in range(len(spec.kinds))]


def kind_of_agents(spec: PoolSpec) -> np.ndarray:
    """[agents of an environment]: the number of each agent's kind."""
    numbers = np.zeros(spec.agents_per_env, np.int64)
    for number, kind in enumerate(spec.kinds):
        numbers[list(kind.agents)] = number
    return numbers
