"""Gymnasium spaces as flat, named tensors, and the two directions across an environment's boundary.

A space is a tree; a pool moves arrays. `leaves` names every array of a tree by its dotted path ("screen",
"game.health", "0"); `ObservationWriter` checks an observation's leaves and puts them into slot-indexed arrays; `ActionReader` builds an
action from such arrays.

Canonical leaves, so that a policy meets few cases: floating-point boxes are float32, discrete values count from zero
(an environment's own `start` is added and removed here), everything else keeps its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.pool.finite_values import FEW, FLOAT32, all_finite, describe, first_bad, is_extreme

ndarray = np.ndarray  # looked up in every step

SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or action."""

    name: str
    path: tuple[str | int, ...]
    space: spaces.Space
    """The canonical space, as policies see it."""
    source: spaces.Space
    """The environment's own space at this path."""

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.space.shape
        assert shape is not None
        return shape

    @property
    def dtype(self) -> np.dtype:
        dtype = self.space.dtype
        assert dtype is not None
        return np.dtype(dtype)

    @property
    def is_floating(self) -> bool:
        return self.dtype.kind == "f"

    @property
    def offset(self) -> Any:
        """What the environment's discrete values are above ours."""
        if isinstance(self.source, spaces.Discrete | spaces.MultiDiscrete):
            return self.source.start
        return 0


def leaves(space: spaces.Space, root: str) -> tuple[Leaf, ...]:
    """The leaves of `space` in a fixed order; a space that is itself a leaf gets the name `root`."""
    found: list[Leaf] = []

    def visit(node: spaces.Space, path: tuple[str | int, ...]) -> None:
        if isinstance(node, spaces.Dict):
            for key, child in node.spaces.items():
                visit(child, (*path, key))
        elif isinstance(node, spaces.Tuple):
            for index, child in enumerate(node.spaces):
                visit(child, (*path, index))
        else:
            name = ".".join(map(str, path)) or root
            found.append(Leaf(name, path, _canonical(node, name), node))

    visit(space, ())
    if not found:
        raise UsageError(f"the {root} space {space} is empty; allowed: {SUPPORTED}")
    names = [leaf.name for leaf in found]
    if len(set(names)) != len(names):
        raise UsageError(f"two parts of the {root} space {space} have the same dotted name; got {names}")
    return tuple(found)


def _canonical(space: spaces.Space, name: str) -> spaces.Space:
    if isinstance(space, spaces.Box):
        if not np.issubdtype(space.dtype, np.floating) or space.dtype == np.float32:
            return space
        with np.errstate(over="ignore"):  # bounds beyond float32 become infinite, which is what they mean
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return space
    raise UsageError(f"{name!r} is a {type(space).__name__} space, which is not supported; allowed: {SUPPORTED}")


class BadValue(ValueError):
    """An environment returned something that its own spaces, or arithmetic, do not allow."""


class ObservationWriter:
    """Writes observations of one environment into slot-indexed arrays, refusing what the space does not allow."""

    def __init__(self, space: spaces.Space, arrays: Mapping[str, np.ndarray]) -> None:
        targets = [_Target(leaf, arrays[leaf.name]) for leaf in leaves(space, "obs")]
        self.write: Callable[[Any, int], None] = targets[0].put if targets[0].is_root else self._write_all
        self._targets = targets

    def _write_all(self, observation: Any, slot: int) -> None:
        for target in self._targets:
            target.put(target.find(observation), slot)


class _PerSlot(dict[int, Any]):
    """What `make` makes for a slot, made once: a lookup here costs a fraction of a NumPy index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, slot: int) -> Any:
        self[slot] = made = self._make(slot)
        return made


class _Target:
    """Where one leaf of an observation goes."""

    def __init__(self, leaf: Leaf, array: np.ndarray) -> None:
        self._leaf, self._array, self._shape = leaf, array, leaf.shape
        self._dtype = leaf.dtype  # the one seen last and found castable: comparing identities is the cheapest check
        self._offset = leaf.offset
        self._nvec: Any = None
        if isinstance(leaf.space, spaces.Discrete):
            self._nvec = leaf.space.n
        elif isinstance(leaf.space, spaces.MultiDiscrete):
            self._nvec = leaf.space.nvec
        self._is_floating = leaf.is_floating
        few = leaf.is_floating and 0 < np.prod(leaf.shape) <= FEW
        self._cells = _PerSlot(self._bytes_of) if few else None
        self.is_root = not leaf.path

    def find(self, observation: Any) -> Any:
        """The leaf's value in an observation."""
        value = observation
        for key in self._leaf.path:
            try:
                value = value[key]
            except (KeyError, IndexError, TypeError) as error:
                raise BadValue(
                    f"the observation has no {self._leaf.name!r} ({type(error).__name__}: {error})"
                ) from None
        return value

    def put(self, value: Any, slot: int) -> None:
        """Check the leaf's value and store it. A value that is not finite is stored before it is refused."""
        if type(value) is not ndarray:
            value = np.asarray(value)
        if value.shape != self._shape:
            raise BadValue(f"observation {self._leaf.name!r} has shape {value.shape}; its space says {self._shape}")
        if value.dtype is not self._dtype:
            self._accept(value)
        if self._cells is not None:
            cells = self._cells[slot]
            if value.dtype is FLOAT32:
                cells[:] = data = value.tobytes()
            else:
                self._array[slot] = value
                data = cells.tobytes()  # what was stored: a finite number may be beyond float32
            # In most steps these bytes are nowhere, not even in a mantissa.
            if (0x7F in data or 0xFF in data) and is_extreme(data) and not all_finite(self._array[slot]):
                self._refuse(value, slot)
            return
        if self._nvec is not None:
            value = value - self._offset
            if np.any(value < 0) or np.any(value >= self._nvec):
                raise BadValue(
                    f"observation {self._leaf.name!r} is {(value + self._offset).tolist()}, outside {self._leaf.source}"
                )
        self._array[slot] = value
        if self._is_floating and not all_finite(value if value.dtype is FLOAT32 else self._array[slot]):
            self._refuse(value, slot)

    def _bytes_of(self, slot: int) -> memoryview:
        """The slot's memory."""
        return memoryview(self._array[slot : slot + 1].reshape(-1)).cast("B")  # type: ignore[arg-type]

    def _refuse(self, value: np.ndarray, slot: int) -> None:
        index = first_bad(self._array[slot])
        raise BadValue(f"observation {self._leaf.name!r} is {describe(float(value[index]), index)}")

    def _accept(self, value: np.ndarray) -> None:
        integral = self._nvec is not None and np.issubdtype(value.dtype, np.integer)
        if not (integral or np.can_cast(value.dtype, self._leaf.dtype, "same_kind")):
            raise BadValue(
                f"observation {self._leaf.name!r} has dtype {value.dtype}; its space says {self._leaf.source.dtype}"
            )
        self._dtype = value.dtype


class ActionReader:
    """Builds the action that an environment expects from slot-indexed arrays. What it returns is the environment's own."""

    def __init__(self, space: spaces.Space, arrays: Mapping[str, np.ndarray]) -> None:
        self.read: Callable[[int], Any] = _reader(
            space, (), {leaf.path: leaf for leaf in leaves(space, "action")}, arrays
        )


def _reader(
    space: spaces.Space, path: tuple[str | int, ...], by_path: Mapping[Any, Leaf], arrays: Mapping[str, np.ndarray]
) -> Callable[[int], Any]:
    if isinstance(space, spaces.Dict):
        parts = {key: _reader(child, (*path, key), by_path, arrays) for key, child in space.spaces.items()}
        return lambda slot: {key: part(slot) for key, part in parts.items()}
    if isinstance(space, spaces.Tuple):
        items = [_reader(child, (*path, i), by_path, arrays) for i, child in enumerate(space.spaces)]
        return lambda slot: tuple(item(slot) for item in items)
    leaf = by_path[path]
    array, offset = arrays[leaf.name], leaf.offset
    if isinstance(space, spaces.Discrete):
        return (lambda slot: array[slot] + offset) if offset else array.__getitem__
    if isinstance(space, spaces.MultiDiscrete):
        dtype = space.dtype
        return lambda slot: (array[slot] + offset).astype(dtype, copy=False)
    # A copy: the environment may keep its last action, and the next one lands in the same memory.
    wanted = leaf.source.dtype
    rows = _PerSlot(array.__getitem__) if leaf.shape else array  # of numbers alone there are no views
    if array.dtype == wanted:
        return lambda slot: rows[slot].copy()
    return lambda slot: rows[slot].astype(wanted)


def check_actions(actions: np.ndarray, leaf: Leaf, slots: np.ndarray) -> np.ndarray:
    """`actions` as an array [B, *leaf.shape] of the leaf's dtype, or a ValueError that names the first bad slot."""
    actions = np.asarray(actions)
    expected = (len(slots), *leaf.shape)
    if actions.shape != expected:
        raise ValueError(f"actions {leaf.name!r} have shape {actions.shape}; {len(slots)} slots need {expected}")
    if isinstance(leaf.space, spaces.Box):
        if np.isfinite(actions).all():
            return actions
        bad = ~np.isfinite(actions)
        problem = "is not finite"
    elif actions.dtype == np.int64 and isinstance(leaf.space, spaces.Discrete):
        # As unsigned numbers negative ones are huge: one look finds both kinds of wrong.
        if len(actions) == 0 or actions.view(np.uint64).max() < leaf.space.n:
            return actions
        bad = (actions < 0) | (actions >= leaf.space.n)
        problem = f"is outside {leaf.space}"
    elif not np.issubdtype(actions.dtype, np.integer) and actions.dtype != np.bool_:
        raise ValueError(f"actions {leaf.name!r} have dtype {actions.dtype}; {leaf.space} needs integers")
    else:
        limit = leaf.space.nvec if isinstance(leaf.space, spaces.MultiDiscrete) else getattr(leaf.space, "n", 2)
        if isinstance(leaf.space, spaces.MultiBinary):
            limit = 2
        bad = (actions < 0) | (actions >= limit)
        problem = f"is outside {leaf.space}"
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(f"action {leaf.name!r} of slot {int(slots[row])} {problem}: {actions[row].tolist()}")
    return actions
