"""Gymnasium spaces as flat, named arrays, and the conversion of observations and actions.

A space is a tree; a pool moves arrays. `leaves` names every array of the tree by its dotted path ("screen",
"game.health", "0"). `ObservationWriter` checks observations and writes them to slot-indexed arrays. `ActionReader`
builds actions from such arrays.

Leaves are canonical, so that a policy meets few cases: floating-point boxes are float32, discrete values count from
zero (this module adds and removes an environment's own `start`), and everything else keeps its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.pool.finite_values import FEW, FLOAT32, all_finite, describe, first_bad, is_extreme

ndarray = np.ndarray  # a cheaper lookup, for every step

MASK = "action_mask"
"""The observation that says which discrete actions are allowed."""
SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these"


@dataclass(frozen=True)
class Leaf:
    """One array of an observation or action."""

    name: str
    path: tuple[str | int, ...]
    space: spaces.Space
    """The canonical space, for policies."""
    source: spaces.Space
    """The environment's own space at this path."""
    choices: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """How many values each discrete number has. As plain integers, because torch.compile cannot read NumPy's."""

    def __post_init__(self) -> None:
        space, found = self.space, []
        if isinstance(space, spaces.Discrete):
            found = [int(space.n)]
        elif isinstance(space, spaces.MultiDiscrete):
            found = space.nvec.flatten().tolist()
        object.__setattr__(self, "choices", tuple(found))

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
        """The environment's own smallest discrete value. Ours is 0."""
        if isinstance(self.source, spaces.Discrete | spaces.MultiDiscrete):
            return self.source.start
        return 0


def leaves(space: spaces.Space, root: str) -> tuple[Leaf, ...]:
    """The leaves of `space` in a fixed order. A space that is itself a leaf gets the name `root`."""
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
        with np.errstate(over="ignore"):  # bounds beyond float32 become infinite
            return spaces.Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return space
    raise UsageError(f"{name!r} is a {type(space).__name__} space, which is not supported; allowed: {SUPPORTED}")


class BadValue(ValueError):
    """An environment returned a value outside its spaces, or one that is not finite."""


class ObservationWriter:
    """Checks observations of one environment against its space and writes them to slot-indexed arrays."""

    def __init__(self, space: spaces.Space, arrays: Mapping[str, np.ndarray]) -> None:
        targets = [_Target(leaf, arrays[leaf.name]) for leaf in leaves(space, "obs")]
        self.write: Callable[[Any, int], None] = targets[0].put if targets[0].is_root else self._write_all
        self._targets = targets

    def _write_all(self, observation: Any, slot: int) -> None:
        for target in self._targets:
            target.put(target.find(observation), slot)


class _PerSlot(dict[int, Any]):
    """A cache of `make(slot)`. A lookup here is much cheaper than a NumPy index."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, slot: int) -> Any:
        self[slot] = made = self._make(slot)
        return made


class _Target:
    """Writes one leaf of an observation."""

    def __init__(self, leaf: Leaf, array: np.ndarray) -> None:
        self._leaf, self._array, self._shape = leaf, array, leaf.shape
        self._dtype = leaf.dtype  # the last castable dtype, because comparing identities is the cheapest check
        self._may_wrap = False
        """Whether integers of that dtype may be too large for the array."""
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
        """Check and store the leaf's value. A value that is not finite is stored before the error."""
        if type(value) is not ndarray:
            value = np.asarray(value)
        if value.shape != self._shape:
            raise BadValue(f"observation {self._leaf.name!r} has shape {value.shape}; its space says {self._shape}")
        if value.dtype is not self._dtype:
            self._accept(value)
        if self._may_wrap and not (value == value.astype(self._array.dtype)).all():
            raise BadValue(f"observation {self._leaf.name!r} has numbers that {self._array.dtype} cannot hold")
        if self._cells is not None:
            cells = self._cells[slot]
            if value.dtype is FLOAT32:
                cells[:] = data = value.tobytes()
            else:
                self._array[slot] = value
                data = cells.tobytes()  # as stored, because a finite float64 may be beyond float32
            # Most observations contain these bytes nowhere, not even in a mantissa.
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
        kept = self._array.dtype
        self._may_wrap = np.issubdtype(kept, np.integer) and not np.can_cast(value.dtype, kept, "safe")


class ActionReader:
    """Builds the action that an environment expects from slot-indexed arrays. The environment may keep the result."""

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
        if array.dtype != space.dtype:
            return lambda slot: own_values(leaf, array[slot])
        return (lambda slot: array[slot] + offset) if offset else array.__getitem__
    if isinstance(space, spaces.MultiDiscrete):
        dtype = space.dtype
        return lambda slot: (array[slot] + offset).astype(dtype, copy=False)
    # A copy, because the environment may keep its last action while the next one overwrites the array.
    wanted = leaf.source.dtype
    rows = _PerSlot(array.__getitem__) if leaf.shape else array  # a scalar has no view
    if array.dtype == wanted:
        return lambda slot: rows[slot].copy()
    return lambda slot: own_values(leaf, rows[slot])


def own_values(leaf: Leaf, values: Any) -> Any:
    """Values [..., *leaf.shape] as the environment's own space has them: from its `start`, in its dtype, and inside its
    bounds, which rounding to float32 may have left."""
    source, dtype = leaf.source, np.dtype(leaf.source.dtype)
    values = values + leaf.offset
    values = values.astype(dtype) if isinstance(values, np.ndarray) else dtype.type(values)
    if isinstance(source, spaces.Box) and dtype != leaf.dtype:
        values = np.minimum(np.maximum(values, source.low), source.high)
    return values


def check_actions(actions: np.ndarray, leaf: Leaf, slots: np.ndarray) -> np.ndarray:
    """`actions` as an array [B, *leaf.shape], or a ValueError that names the first bad slot."""
    actions, space = np.asarray(actions), leaf.space
    expected = (len(slots), *leaf.shape)
    if actions.shape != expected:
        raise ValueError(f"actions {leaf.name!r} have shape {actions.shape}; {len(slots)} slots need {expected}")
    if isinstance(space, spaces.Box):
        if all_finite(actions):
            return actions
        bad, problem = ~np.isfinite(actions), "is not finite"
    else:
        if actions.dtype.kind not in "iub":
            raise ValueError(f"actions {leaf.name!r} have dtype {actions.dtype}; {space} needs integers")
        if isinstance(space, spaces.Discrete):
            # Negative numbers become huge unsigned ones, so one comparison finds both kinds of bad values.
            if not len(actions) or (actions.dtype == np.int64 and actions.view(np.uint64).max() < space.n):
                return actions
            limit = space.n
        else:
            limit = space.nvec if isinstance(space, spaces.MultiDiscrete) else 2
        bad, problem = (actions < 0) | (actions >= limit), f"is outside {space}"
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise ValueError(f"action {leaf.name!r} of slot {int(slots[row])} {problem}: {actions[row].tolist()}")
    return actions
