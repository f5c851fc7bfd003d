"""Weights of reward shaping that an environment reads, so that they can be tuned while it runs.

An environment announces them by an attribute `reward_weights: dict[str, float]` with their defaults. A Gymnasium
environment reads its own dictionary, and the pool writes to it. An environment with several agents has a method
`set_reward_weights(agent, {name: value})`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.errors import UsageError
from paceline.pool.env_state import layers

ATTRIBUTE = "reward_weights"


def announced_weights(env: Any, *, several_agents: bool) -> tuple[tuple[str, float], ...]:
    """Names and defaults of the weights that `env` announces."""
    holder = env if several_agents else _holder(env)
    weights = getattr(holder, ATTRIBUTE, None)
    if weights is None:
        return ()
    if several_agents and not callable(getattr(env, "set_reward_weights", None)):
        raise UsageError(f"{env} has reward_weights, so it needs a method set_reward_weights(agent, weights)")
    if not isinstance(weights, Mapping) or not all(_is_weight(*item) for item in weights.items()):
        raise UsageError(f"reward_weights of {env} is {weights!r}; allowed: a dict of finite numbers by name")
    return tuple((name, float(value)) for name, value in weights.items())


def _is_weight(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, int | float | np.number) and math.isfinite(float(value))


def _holder(env: Any) -> Any:
    """The outermost wrapper of a Gymnasium environment that has weights, or the environment."""
    if not hasattr(env, "unwrapped"):
        return env
    return next((layer for layer in layers(env) if hasattr(layer, ATTRIBUTE)), env)


class RewardWeights:
    """Copies the weights of an environment's slots from the slot table into the environment, where they changed."""

    def __init__(self, env: Any, table: np.ndarray, names: tuple[str, ...], slot_of: Mapping[Any, int] | int) -> None:
        """`table` [S, K] has the weights `names` of every slot. `slot_of` is the slot of the only agent, or of each."""
        self._env, self._table, self._names, self._slot_of = env, table, names, slot_of
        self._holder = _holder(env) if isinstance(slot_of, int) else env
        self._applied: dict[int, bytes] = {}

    def apply(self) -> None:
        if isinstance(self._slot_of, int):
            if (weights := self._changed(self._slot_of)) is not None:
                getattr(self._holder, ATTRIBUTE).update(weights)
            return
        for agent, slot in self._slot_of.items():
            if (weights := self._changed(slot)) is not None:
                self._env.set_reward_weights(agent, weights)

    def forget(self) -> None:
        """The environment's own weights have changed: `apply` writes all of them again."""
        self._applied.clear()

    def _changed(self, slot: int) -> dict[str, float] | None:
        row = self._table[slot].tobytes()
        if row == self._applied.get(slot):
            return None
        self._applied[slot] = row
        return dict(zip(self._names, np.frombuffer(row).tolist(), strict=True))


def check_weights(weights: Any, slots: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """`weights` as an array [B, K] of finite numbers, or a ValueError that names the first bad one."""
    array = np.asarray(weights, np.float64)
    if array.shape != (len(slots), len(names)):
        expected = (len(slots), len(names))
        raise ValueError(f"reward weights have shape {array.shape}; {len(slots)} slots and weights {names}: {expected}")
    if not (finite := np.isfinite(array)).all():
        row, column = np.argwhere(~finite)[0].tolist()
        raise ValueError(f"reward weight {names[column]!r} of slot {int(slots[row])} is {array[row, column]}")
    return array
