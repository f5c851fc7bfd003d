"""The GPS and compass sensor: where a point is, relative to the agent.

Legend: N streams.
"""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.sims.navigation.layout import GPS
from paceline.sims.randomness import combine, normal

MAX_DISTANCE = 100.0
"""Upper bound of distances in the observation space."""


def polar_space() -> spaces.Box:
    """The space of `polar`."""
    low, high = np.array([0, -1, -1], np.float32), np.array([MAX_DISTANCE, 1, 1], np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def polar(poses: Tensor, points: Tensor) -> Tensor:
    """[N, 3]: the distance from `poses` [N, 3] to `points` [N, 2], and the cosine and sine of the angle to them."""
    difference = points - poses[:, :2]
    distance = difference.norm(dim=1)
    angle = torch.atan2(difference[:, 1], difference[:, 0]) - poses[:, 2]
    return torch.stack((distance, angle.cos(), angle.sin()), 1)


def noisy(poses: Tensor, keys: Tensor, noise: float) -> Tensor:
    """`poses` [N, 3] with normal noise of the standard deviation `noise`, by the random `keys` (int64 [N])."""
    if not noise:
        return poses
    keys = combine(keys, GPS)
    return poses + noise * normal(torch.stack((keys, combine(keys, 1), combine(keys, 2)), 1))
