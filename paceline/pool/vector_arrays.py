"""Arrays of a vector environment as torch tensors, and back. Nothing is copied unless the dtype changes.

Legend: N environments.

Arrays are torch tensors, NumPy arrays, or others that have `__dlpack__`, such as those of JAX and Warp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.errors import UsageError
from paceline.pool.spaces import Leaf

Convert = Callable[[Tensor], Any]
"""From a tensor to an array of the environment's kind."""


def as_tensor(array: Any, name: str) -> Tensor:
    """An array as a tensor in the same memory. `name` says in errors what it is."""
    if isinstance(array, Tensor):
        return array
    if isinstance(array, np.ndarray) and array.dtype != object:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    if hasattr(array, "__dlpack__"):
        return torch.from_dlpack(array)
    raise UsageError(f"{name}: a {type(array).__name__}; allowed: torch tensors, or arrays with __dlpack__")


def converter_to(example: Any) -> Convert:
    """What makes arrays like `example` of tensors. Unknown kinds of arrays get tensors."""
    if isinstance(example, np.ndarray):
        return lambda tensor: tensor.cpu().numpy()
    namespace = getattr(example, "__array_namespace__", None)
    if isinstance(example, Tensor) or namespace is None:
        return lambda tensor: tensor
    return namespace().from_dlpack


class ArrayReader:
    """Checks arrays of `num_envs` environments on a device, and gives them the dtype that policies expect."""

    def __init__(self, num_envs: int, device: torch.device, label: str) -> None:
        self._num_envs, self._device, self._label = num_envs, device, label

    def read(self, array: Any, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """[N, *shape] of `dtype`."""
        values = as_tensor(array, f"{self._label}: {name}")
        expected = (self._num_envs, *shape)
        if tuple(values.shape) != expected:
            raise UsageError(f"{self._label}: {name} has shape {tuple(values.shape)}; allowed: {expected}")
        if not _is_on(values, self._device):
            raise UsageError(
                f"{self._label}: {name} is on {values.device}; allowed: {self._device}, the device that the function "
                "is given (--device sets it)"
            )
        if values.dtype == dtype:
            return values
        if not _is_castable(values.dtype, dtype):
            raise UsageError(f"{self._label}: {name} is {_named(values.dtype)}; allowed: {_named(dtype)}")
        return values.to(dtype)

    def flags(self, array: Any, name: str) -> Tensor:
        return self.read(array, name, (), torch.bool)

    def rewards(self, array: Any) -> Tensor:
        return self.read(array, "the reward", (), torch.float32)

    def observations(self, tree: Any, leaves: Sequence[Leaf], what: str = "observation") -> dict[str, Tensor]:
        """By leaf name, from arrays in the form of the observation space."""
        found = {}
        for leaf in leaves:
            name = f"{what} {leaf.name!r}"
            values = self.read(branch(tree, leaf, self._label), name, leaf.shape, _dtype_of(leaf))
            found[leaf.name] = values - _offset(leaf, values) if np.any(leaf.offset) else values
            self._require_choices(found[leaf.name], leaf, name)
        return found

    def _require_choices(self, values: Tensor, leaf: Leaf, name: str) -> None:
        """Refuse choices that do not exist. On a GPU nothing is checked, because this would wait for it."""
        if values.device.type != "cpu" or not isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete):
            return
        count = leaf.space.n if isinstance(leaf.space, spaces.Discrete) else leaf.space.nvec
        if (values.numpy() < 0).any() or (values.numpy() >= count).any():
            raise UsageError(f"{self._label}: {name} is outside {leaf.source}")


def branch(tree: Any, leaf: Leaf, label: str) -> Any:
    """The part of `tree`, a tree of dictionaries and tuples, that belongs to a leaf."""
    for key in leaf.path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError) as error:
            raise UsageError(
                f"{label}: an observation has no {leaf.name!r} ({type(error).__name__}: {error})"
            ) from None
    return tree


def action_tree(space: spaces.Space, actions: dict[str, Tensor], leaves: Sequence[Leaf], convert: Convert) -> Any:
    """Actions in the form of the environment's own space, from those of a policy."""
    by_path = {leaf.path: convert(_own_values(actions[leaf.name], leaf)) for leaf in leaves}

    def build(node: spaces.Space, path: tuple[str | int, ...]) -> Any:
        if isinstance(node, spaces.Dict):
            return {key: build(child, (*path, key)) for key, child in node.spaces.items()}
        if isinstance(node, spaces.Tuple):
            return tuple(build(child, (*path, index)) for index, child in enumerate(node.spaces))
        return by_path[path]

    return build(space, ())


def _own_values(values: Tensor, leaf: Leaf) -> Tensor:
    """Actions with the environment's own dtype. Discrete ones count from its own start."""
    if np.any(leaf.offset):
        values = values + _offset(leaf, values)
    values = values.to(_torch_dtype(np.dtype(leaf.source.dtype)))
    if isinstance(leaf.source, spaces.Box) and leaf.source.dtype != leaf.dtype:  # rounding may have left the bounds
        low, high = (torch.as_tensor(bound, device=values.device) for bound in (leaf.source.low, leaf.source.high))
        values = values.clamp(low, high)
    return values


def _offset(leaf: Leaf, like: Tensor) -> int | Tensor:
    """The smallest values of discrete choices. A number needs no copy to the device."""
    return int(leaf.offset) if np.ndim(leaf.offset) == 0 else torch.as_tensor(leaf.offset, device=like.device)


def _dtype_of(leaf: Leaf) -> torch.dtype:
    """Policies expect choices as int64."""
    if isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete):
        return torch.int64
    return _torch_dtype(leaf.dtype)


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def _is_on(values: Tensor, device: torch.device) -> bool:
    """Whether `values` are on `device`. One without an index is the current device of its type."""
    same = values.device.type == device.type
    return same and (device.index is None or values.device.index in (None, device.index))


def _is_castable(given: torch.dtype, wanted: torch.dtype) -> bool:
    """Integers may have another width, and may become floating-point. Images stay bytes. Flags may be 0 and 1."""
    if given.is_complex or wanted == torch.uint8:
        return False
    return wanted.is_floating_point or not given.is_floating_point


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
