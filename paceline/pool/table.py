"""The memory between simulators and batches: one array per field, indexed by slot.

`serial` pools keep it in a private buffer and `process` pools in shared memory. Both use this code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from paceline.errors import UsageError
from paceline.pool.arguments import check_slots, named_actions
from paceline.pool.protocol import Array, PoolSpec, StepBatch
from paceline.pool.reward_weights import RewardWeights, check_weights
from paceline.pool.spaces import check_actions

_ALIGNMENT = 64  # a cache line, because different processes write neighbouring fields

_SCALARS = {
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
    """Number of the current episode of the slot's environment, from 0."""
    step: np.ndarray
    """Steps taken in the current episode."""
    due: np.ndarray | None = None
    """Where agents take turns: the slot comes back with the last step of its environment."""

    reward_weights: np.ndarray | None = None
    """[S, K], where environments have weights of reward shaping: those that the slot's agent gets."""

    def __init__(self, spec: PoolSpec, buffer: memoryview | bytearray | None = None) -> None:
        self.spec = spec
        if buffer is None:
            buffer = bytearray(self.nbytes(spec))
        self.obs: dict[str, np.ndarray] = {}
        self.final_obs: dict[str, np.ndarray] = {}
        self.actions: dict[str, np.ndarray] = {}
        # Observations of a batch whose slots are not contiguous. They are pinned together with the buffer.
        self._gathered: dict[str, np.ndarray] = {}
        for group, name, dtype, shape, offset in _layout(spec):
            array = np.ndarray(shape, dtype, buffer=buffer, offset=offset)
            if group:
                getattr(self, group)[name] = array
            else:
                setattr(self, name, array)

    def cells(self, name: str) -> Any:
        """A scalar field for writing single cells. A memoryview is much cheaper here than a NumPy index."""
        return memoryview(getattr(self, name))

    def weights_for(self, env: Any, slot_of: Mapping[Any, int] | int) -> RewardWeights | None:
        """What gives `env` the weights of its slots; None if it has no weights."""
        if self.reward_weights is None:
            return None
        return RewardWeights(env, self.reward_weights, tuple(name for name, _ in self.spec.reward_weights), slot_of)

    @staticmethod
    def nbytes(spec: PoolSpec) -> int:
        return max(offset + _size(dtype, shape) for _, _, dtype, shape, offset in _layout(spec))

    def snapshot(self) -> dict[str, np.ndarray]:
        """A copy of what `restore` needs."""
        kept = {f"obs/{name}": array.copy() for name, array in self.obs.items()}
        named = ("active", "episode", "step", "due", "reward_weights")
        return kept | {name: getattr(self, name).copy() for name in named if getattr(self, name) is not None}

    def restore(self, snapshot: dict[str, np.ndarray]) -> None:
        """Put `snapshot` back, with no rewards and no ends."""
        for name, values in snapshot.items():
            array = self.obs[name.removeprefix("obs/")] if name.startswith("obs/") else getattr(self, name)
            array[:] = values
        self.reward[:] = 0
        self.terminated[:] = self.truncated[:] = False

    def reset_reward_weights(self) -> None:
        """Give every slot the environments' own weights."""
        if self.reward_weights is not None:
            self.reward_weights[:] = [default for _, default in self.spec.reward_weights]

    def set_reward_weights(self, slots: Array, weights: Array) -> None:
        """See `Pool.set_reward_weights`."""
        if self.reward_weights is None:
            raise UsageError("these environments have no reward weights: they lack a dictionary `reward_weights`")
        slots = check_slots(slots, np.ones(self.spec.num_slots, bool))
        names = tuple(name for name, _ in self.spec.reward_weights)
        self.reward_weights[slots] = check_weights(weights, slots, names)

    def write_actions(self, actions: Array | Mapping[str, Array], slots: np.ndarray, rows: slice | np.ndarray) -> None:
        """Check the actions of `slots`, which `rows` indexes, and write them. Bad actions change nothing."""
        named = named_actions(actions, self.spec.actions)
        checked = [(leaf.name, check_actions(named[leaf.name], leaf, slots)) for leaf in self.spec.actions]
        for name, values in checked:
            self.actions[name][rows] = values

    def batch(self, slots: np.ndarray, rows: slice | np.ndarray, lost: np.ndarray) -> StepBatch:
        """The rows of `slots` (ascending), which `rows` indexes. `lost` [B] goes into the batch.

        Contiguous slots cost no copy. Others are gathered into one fixed buffer.
        """
        if isinstance(rows, slice):
            obs = {name: array[rows] for name, array in self.obs.items()}
        else:
            # mode="clip" because take() with `out` otherwise copies twice. The slots are in range.
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
            episode=self.episode[rows],
        )


def _size(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _layout(spec: PoolSpec) -> Iterator[tuple[str, str, np.dtype, tuple[int, ...], int]]:
    """(group, name, dtype, shape, byte offset) of every array, in a fixed order."""
    fields: list[tuple[str, str, np.dtype, tuple[int, ...]]] = []
    fields += [("", name, np.dtype(kind), (spec.num_slots,)) for name, kind in _SCALARS.items()]
    if spec.turn_based:
        fields.append(("", "due", np.dtype(bool), (spec.num_slots,)))
    if spec.reward_weights:
        fields.append(("", "reward_weights", np.dtype("float64"), (spec.num_slots, len(spec.reward_weights))))
    groups = {"actions": spec.actions, "obs": spec.obs, "final_obs": spec.obs, "_gathered": spec.obs}
    for group, leaves in groups.items():
        fields += [(group, leaf.name, leaf.dtype, (spec.num_slots, *leaf.shape)) for leaf in leaves]
    offset = 0
    for group, name, dtype, shape in fields:
        yield group, name, dtype, shape, offset
        offset += -(-_size(dtype, shape) // _ALIGNMENT) * _ALIGNMENT
