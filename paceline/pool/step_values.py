"""What steppers read from the results of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from paceline.pool.finite_values import FLOAT32_MAX, describe
from paceline.pool.spaces import BadValue


def checked_reward(reward: Any) -> float:
    """`reward` as a number that float32 holds, or a `BadValue`."""
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = single_reward(reward)
    if not -FLOAT32_MAX <= value <= FLOAT32_MAX:
        raise bad_reward(value)
    return value


def single_reward(reward: Any) -> float:
    """The number in an array that has only one, as older environments return it; a `BadValue` for anything else."""
    if isinstance(reward, np.ndarray) and reward.size == 1 and reward.dtype.kind in "biuf":
        return float(reward.item())
    shape = f" of shape {reward.shape}" if isinstance(reward, np.ndarray) else ""
    raise BadValue(f"the reward is a {type(reward).__name__}{shape}; allowed: a number")


def bad_reward(reward: float) -> BadValue:
    return BadValue(f"the reward is {describe(reward)}")


def scalars(info: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in an `info`."""
    if not isinstance(info, Mapping):
        raise BadValue(f"info is a {type(info).__name__}; allowed: a dictionary")
    return {
        str(key): float(value)
        for key, value in info.items()
        if isinstance(value, bool | int | float | np.number | np.bool_)
        or (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf")
    }
