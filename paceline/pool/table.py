"""The memory that simulators write and batches are read from: one array per field, indexed by slot.

The same layout serves a private buffer (`serial`) and a shared one (`process`), so both pools run the same code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from paceline.pool.protocol import PoolSpec, StepBatch

_ALIGNMENT = 64  # a cache line: neighbouring fields are written by different processes

_SCALARS: dict[str, str] = {
    "reward": "float32",
    "terminated": "bool",
    "truncated": "bool",
    "active": "bool",
    "step_seconds": "float32",
    "episode": "int32",
    "step": "int32",
}


class SlotTable:
    """Slot-indexed arrays over `buffer`, which holds at least `SlotTable.nbytes(spec)` bytes."""

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    active: np.ndarray
    step_seconds: np.ndarray
    episode: np.ndarray
    """Episodes that the slot's environment had begun before the current one."""
    step: np.ndarray
    """Steps taken in the current episode."""

    def __init__(self, spec: PoolSpec, buffer: memoryview | bytearray | None = None) -> None:
        self.spec = spec
        if buffer is None:
            buffer = bytearray(self.nbytes(spec))
        self.obs: dict[str, np.ndarray] = {}
        self.final_obs: dict[str, np.ndarray] = {}
        self.actions: dict[str, np.ndarray] = {}
        self._gathered: dict[str, np.ndarray] = {}
        """Observations of a batch that is no run of slots, for its receiver alone; where the buffer is pinned, so are they."""
        for group, name, dtype, shape, offset in _layout(spec):
            array = np.ndarray(shape, dtype, buffer=buffer, offset=offset)
            if group:
                getattr(self, group)[name] = array
            else:
                setattr(self, name, array)

    def cells(self, name: str) -> Any:
        """A scalar field for writing single cells: a memoryview costs a fraction of what a NumPy index does."""
        return memoryview(getattr(self, name))

    @staticmethod
    def nbytes(spec: PoolSpec) -> int:
        return max(offset + _size(dtype, shape) for _, _, dtype, shape, offset in _layout(spec))

    def snapshot(self) -> dict[str, np.ndarray]:
        """What has to be kept of the table to continue from where it is."""
        kept = {f"obs/{name}": array.copy() for name, array in self.obs.items()}
        return kept | {name: getattr(self, name).copy() for name in ("active", "episode", "step")}

    def restore(self, snapshot: dict[str, np.ndarray]) -> None:
        """Be as at `snapshot`, with no transition to report."""
        for name, values in snapshot.items():
            array = self.obs[name.removeprefix("obs/")] if name.startswith("obs/") else getattr(self, name)
            array[:] = values
        self.reward[:] = 0
        self.terminated[:] = self.truncated[:] = False

    def batch(self, slots: np.ndarray, rows: slice | np.ndarray, lost: np.ndarray) -> StepBatch:
        """The rows of `slots` (ascending), which `rows` indexes; `lost` is theirs.

        A run of slots costs no copy; others are gathered into one fixed buffer.
        """
        if isinstance(rows, slice):
            obs = {name: array[rows] for name, array in self.obs.items()}
        else:
            # mode="clip" because take() with `out` otherwise copies twice; slots are known to be in range.
            obs = {
                name: np.take(array, slots, axis=0, out=self._gathered[name][: len(slots)], mode="clip")
                for name, array in self.obs.items()
            }
        return StepBatch(
            slots=slots,
            obs=obs,
            reward=self.reward[rows],
            terminated=self.terminated[rows],
            truncated=self.truncated[rows],
            final_obs=self.final_obs,
            active=self.active[rows],
            lost=lost,
            step_seconds=self.step_seconds[rows],
        )


def _size(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _layout(spec: PoolSpec) -> Iterator[tuple[str, str, np.dtype, tuple[int, ...], int]]:
    """(group, name, dtype, shape, byte offset) of every array, in a fixed order."""
    fields: list[tuple[str, str, np.dtype, tuple[int, ...]]] = []
    for name, kind in _SCALARS.items():
        fields.append(("", name, np.dtype(kind), (spec.num_slots,)))
    for group, group_leaves in (
        ("actions", spec.actions),
        ("obs", spec.obs),
        ("final_obs", spec.obs),
        ("_gathered", spec.obs),
    ):
        for leaf in group_leaves:
            fields.append((group, leaf.name, leaf.dtype, (spec.num_slots, *leaf.shape)))
    offset = 0
    for group, name, dtype, shape in fields:
        yield group, name, dtype, shape, offset
        offset += -(-_size(dtype, shape) // _ALIGNMENT) * _ALIGNMENT
