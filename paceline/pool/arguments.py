"""Checks of the arguments of `recv` and `send`, the same for every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.pool.protocol import Array
from paceline.pool.spaces import Leaf


def chosen_groups(group: int | None, num_groups: int) -> range:
    """The groups that a `recv` asks for."""
    if group is None:
        return range(num_groups)
    if not 0 <= group < num_groups:
        raise ValueError(f"group {group} does not exist; this pool has {num_groups}")
    return range(group, group + 1)


def slots_to_wait_for(min_slots: int | None, max_slots: int | None, size: int, held: int) -> int:
    """How many of the `size` slots a `recv` waits for, where the caller holds `held` of them.

    A wait that could never end is an error.
    """
    want = size if min_slots is None else min_slots
    if not 0 <= want <= size:
        raise ValueError(f"min_slots is {min_slots}; allowed: 0 to {size}, or None for all")
    if max_slots is not None and max_slots < 1:
        raise ValueError(f"max_slots is {max_slots}; allowed: 1 or more, or None for all")
    if want > size - held:
        raise ValueError(
            f"recv would wait for ever: {want} slots wanted, but the caller holds {held} of {size}; send them first"
        )
    return want


def named_actions(actions: Array | Mapping[str, Array], leaves: Sequence[Leaf]) -> Mapping[str, Array]:
    """Actions by leaf name, from a mapping or from a single array."""
    if not isinstance(actions, np.ndarray) and isinstance(actions, Mapping):
        if set(actions) != {leaf.name for leaf in leaves}:
            raise ValueError(f"actions named {sorted(actions)}; this pool needs {sorted(leaf.name for leaf in leaves)}")
        return actions
    if len(leaves) != 1:
        raise ValueError(f"this pool needs a mapping with one array for each of {[leaf.name for leaf in leaves]}")
    return {leaves[0].name: actions}


def as_slots(slots: Array) -> np.ndarray:
    """Slots as an int64 array."""
    array = np.asarray(slots)
    if array.dtype == np.int64:
        return array
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"slots must be integers, got {array.dtype}")
    return array.astype(np.int64)


def check_slots(slots: Array, held: np.ndarray) -> np.ndarray:
    """`slots` as an array. All of them must be `held` [S] by the caller, and none may occur twice."""
    slots = as_slots(slots)
    if slots.ndim != 1:
        raise ValueError(f"slots must be one-dimensional, got shape {slots.shape}")
    if len(slots) == 0:
        return slots
    if slots.min() < 0 or slots.max() >= len(held):
        raise ValueError(f"slots must be in [0, {len(held)}), got {slots.tolist()}")
    if not held[slots].all():
        raise ValueError(f"slots {slots[~held[slots]].tolist()} were not received since they were last sent")
    if len(slots) > 1 and not (np.diff(slots) > 0).all() and len(np.unique(slots)) != len(slots):
        raise ValueError(f"slots {slots.tolist()} name a slot twice")
    return slots
