"""Who has which slot: the caller (held), the simulators (in flight), or the queue between them (ready)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from paceline.pool.protocol import PoolSpec, as_slots

Rows = slice | np.ndarray
"""An index into slot-indexed arrays; a slice costs no copy, and a fraction of the time."""


class SlotBook:
    """The life of every slot: in flight -> ready -> held -> (all agents of its environment sent) -> in flight.

    Environments are what moves; slots are what is counted. A new book has everything in flight.
    """

    def __init__(self, spec: PoolSpec) -> None:
        self._agents = spec.agents_per_env
        self._num_slots = spec.num_slots
        self.held = np.zeros(spec.num_slots, bool)
        self._unsent = np.zeros(spec.num_envs, np.int64)  # slots of the environment that the caller still holds
        self.lost = np.zeros(spec.num_slots, bool)
        """Slots whose next batch has to say that their episode was lost."""
        self._any_lost = False
        self._group_of = np.empty(spec.num_envs, np.int64)
        self._group_sizes = []
        for group in range(spec.num_groups):
            envs = spec.group_envs(group)
            self._group_of[envs.start : envs.stop] = group
            self._group_sizes.append(len(envs) * self._agents)
        self._all = range(spec.num_groups)
        self._ready: list[list[int]] = [[] for _ in self._all]  # environments, oldest first
        self._num_held = [0] * spec.num_groups
        self._just_taken: tuple[np.ndarray, Rows] | None = None

    def wanted(self, min_slots: int | None, group: int | None) -> int:
        """How many slots a `recv` has to wait for; refuses a wait that could never end."""
        size = held = 0
        for g in self._groups(group):
            size += self._group_sizes[g]
            held += self._num_held[g]
        want = size if min_slots is None else min_slots
        if not 0 <= want <= size:
            raise ValueError(f"min_slots is {min_slots}; allowed: 0 to {size}, or None for all")
        if want > size - held:
            raise ValueError(
                f"recv would wait for ever: {want} slots wanted, but the caller holds {held} of {size}; send them first"
            )
        return want

    @property
    def num_in_flight(self) -> int:
        """Slots that the caller does not hold: those that are ready count, too."""
        return self._num_slots - sum(self._num_held)

    def num_ready(self, group: int | None) -> int:
        if group is not None:
            return self._agents * len(self._ready[group])
        return self._agents * sum(map(len, self._ready))

    def mark_ready(self, envs: list[int]) -> None:
        if len(self._ready) == 1:
            self._ready[0].extend(envs)
        else:
            for env in envs:
                self._ready[self._group_of[env]].append(env)

    def take(
        self, max_slots: int | None, group: int | None, first: np.ndarray | None = None
    ) -> tuple[np.ndarray, Rows, np.ndarray]:
        """Hand up to `max_slots` ready slots (whole environments, at least one) to the caller: the oldest, or those of
        the lowest number in `first` (that of an environment is its first slot's).

        Returns the slots, ascending; an index for them, which is a slice where they are a run; and `lost` of each.
        """
        if max_slots is not None and max_slots < 1:
            raise ValueError(f"max_slots is {max_slots}; allowed: 1 or more, or None for all")
        most = self._num_slots if max_slots is None else max(1, max_slots // self._agents)
        taken: list[int] = []
        for g in self._groups(group):
            queue = self._ready[g]
            if first is not None and len(queue) > most - len(taken):
                queue.sort(key=lambda env: first[env * self._agents])  # stable: among equals, the oldest first
            part = queue[: most - len(taken)]
            del queue[: len(part)]
            taken += part
            self._num_held[g] += len(part) * self._agents
        taken.sort()
        envs = np.array(taken, np.int64)
        if self._agents == 1:
            slots = envs
        else:
            self._unsent[envs] = self._agents
            slots = (envs[:, None] * self._agents + np.arange(self._agents)).ravel()
        count = len(slots)
        is_run = count > 0 and int(slots[-1]) - int(slots[0]) + 1 == count
        rows: Rows = slice(int(slots[0]), int(slots[0]) + count) if is_run else slots
        self.held[rows] = True
        slots.flags.writeable = False
        self._just_taken = slots, rows
        if not self._any_lost:
            return slots, rows, np.zeros(count, bool)
        lost = self.lost[slots]
        self.lost[slots] = False
        self._any_lost = bool(self.lost.any())
        return slots, rows, lost

    @staticmethod
    def take_none() -> tuple[np.ndarray, Rows, np.ndarray]:
        """What `take` returns where there is nothing to take."""
        none = np.empty(0, np.int64)
        return none, none, np.empty(0, bool)

    def mark_lost(self, env: int) -> None:
        self.lost[env * self._agents : (env + 1) * self._agents] = True
        self._any_lost = True

    def check(self, slots: object) -> tuple[np.ndarray, Rows]:
        """`slots` as an array and as an index, each of them held by the caller and none named twice."""
        taken, self._just_taken = self._just_taken, None
        if taken is not None and slots is taken[0]:  # the usual case: what was handed out last comes back as it is
            return taken
        slots = as_slots(slots)
        if slots.ndim != 1:
            raise ValueError(f"slots must be one-dimensional, got shape {slots.shape}")
        if len(slots) == 0:
            return slots, slots
        if slots.min() < 0 or slots.max() >= self._num_slots:
            raise ValueError(f"slots must be in [0, {self._num_slots}), got {slots.tolist()}")
        if not self.held[slots].all():
            raise ValueError(f"slots {slots[~self.held[slots]].tolist()} were not received since they were last sent")
        if len(slots) > 1 and not (np.diff(slots) > 0).all() and len(np.unique(slots)) != len(slots):
            raise ValueError(f"a slot is named twice in {slots.tolist()}")
        return slots, slots

    def release(self, slots: np.ndarray, rows: Rows) -> np.ndarray:
        """Take checked `slots` back from the caller: the environments of which now every slot was sent."""
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
            counts = np.bincount(self._group_of[slots // self._agents], minlength=len(self._num_held))
            self._num_held = [held - count for held, count in zip(self._num_held, counts.tolist(), strict=True)]
        return envs

    def in_flight(self) -> np.ndarray:
        """By environment: whether a simulator has to answer for it. Then it is neither ready nor waiting for the caller."""
        flying = np.logical_not(self.held.reshape(-1, self._agents).any(axis=1))
        for ready in self._ready:
            flying[ready] = False
        return flying

    def held_envs(self) -> list[int]:
        """The environments whose slots are all held by the caller."""
        return np.flatnonzero(self.held.reshape(-1, self._agents).all(axis=1)).tolist()

    def ready_all(self, envs: Iterable[int] | None = None) -> None:
        """As when `envs` (all, if None) have finished their step, none was received yet, and the others are in flight."""
        self.launch_all()
        self.mark_ready(list(range(len(self._unsent)) if envs is None else envs))

    def launch_all(self) -> None:
        """As before anything was received: everything in flight."""
        self._ready = [[] for _ in self._ready]
        self._num_held = [0] * len(self._num_held)
        self._unsent[:] = 0
        self.held[:] = False
        self.lost[:] = False
        self._any_lost = False

    def _groups(self, group: int | None) -> range:
        if group is None:
            return self._all
        if not 0 <= group < len(self._ready):
            raise ValueError(f"group {group} does not exist; this pool has {len(self._ready)}")
        return range(group, group + 1)
