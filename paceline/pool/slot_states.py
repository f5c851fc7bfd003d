"""Where each slot is: held by the caller, in flight in a simulator, or ready in the queue between them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from paceline.pool.arguments import check_slots, chosen_groups, slots_to_wait_for
from paceline.pool.protocol import PoolSpec

Rows = slice | np.ndarray
"""An index into slot-indexed arrays. A slice avoids a copy."""


class SlotStates:
    """The state of every slot: in flight -> ready -> held -> (all agents of its environment sent) -> in flight.

    Whole environments move; slots are counted. At first everything is in flight. Where agents take turns, the slots of
    an environment that are not due stay in flight when it moves.
    """

    def __init__(self, spec: PoolSpec, due: np.ndarray | None = None) -> None:
        """`due` [S], where agents take turns: slots that become ready together with their environment."""
        self._agents, self._num_slots, num_groups = spec.agents_per_env, spec.num_slots, spec.num_groups
        self.held = np.zeros(spec.num_slots, bool)
        self._unsent = np.zeros(spec.num_envs, np.int64)  # slots of the environment that the caller still holds
        self._lost = np.zeros(spec.num_slots, bool)  # slots whose next batch says that their episode was lost
        self._any_lost = False
        self._group_sizes = [len(spec.group_slots(group)) for group in range(num_groups)]
        self._group_of = np.repeat(np.arange(num_groups), [len(spec.group_envs(group)) for group in range(num_groups)])
        self._ready: list[list[int]] = [[] for _ in range(num_groups)]  # environments, oldest first
        self._num_held = [0] * num_groups
        self._just_taken: tuple[np.ndarray, Rows] | None = None
        self._due = due.reshape(-1, self._agents) if due is not None and self._agents > 1 else None

    def wanted(self, min_slots: int | None, max_slots: int | None, group: int | None) -> int:
        """How many slots a `recv` with these arguments waits for. Raises for bad arguments."""
        size = held = 0
        for g in chosen_groups(group, len(self._ready)):
            size += self._group_sizes[g]
            held += self._num_held[g]
        return slots_to_wait_for(min_slots, max_slots, size, held)

    @property
    def num_in_flight(self) -> int:
        """See `Pool.num_in_flight`. Ready slots count too."""
        if self._due is not None:
            return self._agents * int(self.in_flight().sum()) + self.num_ready(None)
        return self._num_slots - sum(self._num_held)

    def num_ready(self, group: int | None) -> int:
        if group is not None:
            return self._count(self._ready[group])
        return sum(map(self._count, self._ready))

    def num_missing(self, want: int, group: int | None) -> int:
        """How many slots are still to become ready, of `want`. None if simulators will give no more by themselves."""
        missing = want - self.num_ready(group)
        if missing > 0 and self._due is not None and not self._any_in_flight(group):
            return 0
        return missing

    def _any_in_flight(self, group: int | None) -> bool:
        flying = self.in_flight()
        return bool(flying.any() if group is None else flying[self._group_of == group].any())

    def _count(self, envs: list[int]) -> int:
        """The slots of `envs`, which are ready."""
        return self._agents * len(envs) if self._due is None else int(self._due[envs].sum())

    def _num_fitting(self, queue: list[int], most: int) -> int:
        """How many environments at the head of `queue` have at most `most` slots together."""
        if self._due is None:
            return most // self._agents
        return int(np.searchsorted(self._due[queue].sum(axis=1).cumsum(), most, side="right"))

    def mark_ready(self, envs: list[int]) -> None:
        if len(self._ready) == 1:
            self._ready[0].extend(envs)
        else:
            for env in envs:
                self._ready[self._group_of[env]].append(env)

    def take(
        self, max_slots: int | None, group: int | None, first: np.ndarray | None = None
    ) -> tuple[np.ndarray, Rows, np.ndarray]:
        """Give up to `max_slots` ready slots to the caller: whole environments, at least one, oldest first.

        With `first` [S], environments with the lowest number at their first slot come first. Returns the slots in
        ascending order, an index for them (a slice where they are contiguous), and whether the episode of each was
        lost.
        """
        left = self._num_slots if max_slots is None else max_slots
        taken: list[int] = []
        for g in chosen_groups(group, len(self._ready)):
            queue = self._ready[g]
            if first is not None and len(queue) > self._num_fitting(queue, left):
                queue.sort(key=lambda env: first[env * self._agents])  # stable: the oldest comes first among equals
            fitting = self._num_fitting(queue, left)
            part = queue[: fitting if taken else max(1, fitting)]
            del queue[: len(part)]
            taken += part
            count = self._count(part)
            left = max(0, left - count)
            self._num_held[g] += count
        taken.sort()
        slots = np.array(taken, np.int64)
        if self._agents > 1:
            all_slots = slots[:, None] * self._agents + np.arange(self._agents)
            if self._due is None:
                self._unsent[slots] = self._agents
                slots = all_slots.ravel()
            else:
                due = self._due[slots]
                self._unsent[slots] = due.sum(axis=1)
                slots = all_slots[due]
        count = len(slots)
        contiguous = count > 0 and int(slots[-1]) - int(slots[0]) + 1 == count
        rows: Rows = slice(int(slots[0]), int(slots[0]) + count) if contiguous else slots
        self.held[rows] = True
        slots.flags.writeable = False
        self._just_taken = slots, rows
        if not self._any_lost:
            return slots, rows, np.zeros(count, bool)
        lost = self._lost[slots]
        self._lost[slots] = False
        self._any_lost = bool(self._lost.any())
        return slots, rows, lost

    @staticmethod
    def take_none() -> tuple[np.ndarray, Rows, np.ndarray]:
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, bool)

    def mark_lost(self, env: int) -> None:
        self._lost[env * self._agents : (env + 1) * self._agents] = True
        self._any_lost = True

    def check(self, slots: object) -> tuple[np.ndarray, Rows]:
        """`slots`, which the caller sends, as an array and as an index. Raises unless the caller holds all of them."""
        taken, self._just_taken = self._just_taken, None
        if taken is not None and slots is taken[0]:  # the usual case: the last batch comes back unchanged
            return taken
        slots = check_slots(slots, self.held)
        return slots, slots

    def release(self, slots: np.ndarray, rows: Rows) -> np.ndarray:
        """Take checked `slots` from the caller. Returns the environments whose slots are now all sent."""
        self.held[rows] = False
        if self._agents == 1:
            envs = slots
        else:
            touched, counts = np.unique(slots // self._agents, return_counts=True)
            self._unsent[touched] -= counts
            envs = touched[self._unsent[touched] == 0]
        if len(self._num_held) == 1:
            self._num_held[0] -= len(slots)
        else:
            for group, count in enumerate(np.bincount(self._group_of[slots // self._agents]).tolist()):
                self._num_held[group] -= count
        return envs

    def in_flight(self) -> np.ndarray:
        """[num_envs] bool: a simulator owes a result for the environment."""
        flying = np.logical_not(self.held.reshape(-1, self._agents).any(axis=1))
        for ready in self._ready:
            flying[ready] = False
        return flying

    def held_envs(self) -> list[int]:
        """The environments whose slots are all held by the caller, except those that were not due."""
        held = self.held.reshape(-1, self._agents)
        if self._due is None:
            return np.flatnonzero(held.all(axis=1)).tolist()
        return np.flatnonzero((held | ~self._due).all(axis=1) & held.any(axis=1)).tolist()

    def restart(self, ready: Iterable[int] = ()) -> None:
        """Forget everything: the environments `ready` are ready, all others are in flight."""
        self._ready = [[] for _ in self._ready]
        self._num_held = [0] * len(self._num_held)
        self._unsent[:] = 0
        self.held[:] = self._lost[:] = False
        self._any_lost = False
        self._just_taken = None
        self.mark_ready(list(ready))
