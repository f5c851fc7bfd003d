"""Finished rows between a simulator that hands over whole arrays and a caller who may want other portions of them.

Usually the caller wants exactly what has arrived, and then nothing is copied. Legend: B rows of a parcel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np


@dataclass(slots=True)
class Parcel:
    """Rows that were finished together. All arrays are [B, ...]; dictionaries hold such arrays by name."""

    slots: np.ndarray
    """int64, ascending."""
    obs: dict[str, np.ndarray]
    reward: np.ndarray
    done: np.ndarray
    """Terminated or truncated."""
    terminated: np.ndarray
    truncated: np.ndarray
    step_seconds: np.ndarray
    score: np.ndarray
    """What the row adds to its episode's return."""
    length: np.ndarray
    """Steps of the row's episode, this one included."""
    info: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.slots)

    def rows(self, which: slice | np.ndarray) -> Parcel:
        def pick(value: dict[str, np.ndarray] | np.ndarray) -> dict[str, np.ndarray] | np.ndarray:
            return {name: array[which] for name, array in value.items()} if isinstance(value, dict) else value[which]

        return Parcel(*(pick(getattr(self, field.name)) for field in fields(self)))  # type: ignore[arg-type]


def merge(parcels: Sequence[Parcel]) -> Parcel:
    """All rows of `parcels` in one, by ascending slot."""
    if len(parcels) == 1:
        return parcels[0]

    def join(values: list) -> dict[str, np.ndarray] | np.ndarray:
        if isinstance(values[0], dict):
            return {name: np.concatenate([value[name] for value in values]) for name in values[0]}
        return np.concatenate(values)

    merged = Parcel(*(join([getattr(parcel, field.name) for parcel in parcels]) for field in fields(Parcel)))  # type: ignore[arg-type]
    return merged.rows(np.argsort(merged.slots))


class Shelf:
    """Parcels of several groups, each group's oldest first, with the count of what is still to come."""

    def __init__(self, group_sizes: Sequence[int]) -> None:
        self._sizes = list(group_sizes)
        self._parcels: list[deque[Parcel]] = [deque() for _ in self._sizes]
        self._ready = [0] * len(self._sizes)
        self._flying = list(self._sizes)

    def wanted(self, min_slots: int | None, max_slots: int | None, group: int | None) -> int:
        """How many slots a `recv` has to wait for; refuses a wait that could never end."""
        groups = self._groups(group)
        size = sum([self._sizes[g] for g in groups])
        want = size if min_slots is None else min_slots
        if not 0 <= want <= size:
            raise ValueError(f"min_slots is {min_slots}; allowed: 0 to {size}, or None for all")
        if max_slots is not None and max_slots < 1:
            raise ValueError(f"max_slots is {max_slots}; allowed: 1 or more, or None for all")
        coming = sum([self._ready[g] + self._flying[g] for g in groups])
        if want > coming:
            raise ValueError(
                f"recv would wait for ever: {want} slots wanted, but the caller holds {size - coming} of {size}; "
                "send them first"
            )
        return want

    def num_ready(self, group: int | None) -> int:
        return sum([self._ready[g] for g in self._groups(group)])

    def launch(self, group: int, count: int) -> bool:
        """Expect `count` more rows of `group`; returns whether they are all that is expected."""
        self._flying[group] += count
        return self._flying[group] == count

    def put(self, group: int, parcel: Parcel) -> None:
        self._parcels[group].append(parcel)
        self._ready[group] += len(parcel)
        self._flying[group] -= len(parcel)

    def take(self, max_slots: int | None, group: int | None) -> list[Parcel]:
        """Up to `max_slots` ready rows, the oldest of each group first."""
        left = sum(self._sizes) if max_slots is None else max_slots
        taken: list[Parcel] = []
        for g in self._groups(group):
            queue = self._parcels[g]
            while queue and left:
                parcel = queue.popleft()
                if len(parcel) > left:
                    queue.appendleft(parcel.rows(slice(left, None)))
                    parcel = parcel.rows(slice(0, left))
                taken.append(parcel)
                left -= len(parcel)
                self._ready[g] -= len(parcel)
        return taken

    def _groups(self, group: int | None) -> range:
        if group is None:
            return range(len(self._sizes))
        if not 0 <= group < len(self._sizes):
            raise ValueError(f"group {group} does not exist; this pool has {len(self._sizes)}")
        return range(group, group + 1)
