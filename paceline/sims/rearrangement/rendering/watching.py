"""Where a camera stands that watches a robot: at a free place of the room, with a clear view of the robot and of its
target. It turns with the robot, and moves only when it loses sight of it.

Legend: C places, S static boxes.
"""

from __future__ import annotations

import math

import numpy as np

from paceline.sims.rearrangement.rendering.painter import EYE_HEIGHT

APART = 2.3
"""The preferred distance from the robot, in metres."""
NEAREST, FARTHEST = 1.5, 4.0
CHEST = 0.9
"""The height at which the robot is looked at."""
BEHIND = -0.8
"""The cosine of the angle between the heading and the camera's direction. Below it, the body hides the arm."""
AHEAD = 0.3
"""The camera turns to a point so far before the robot."""
GRID = 0.25
MARGIN = 0.12
"""Least distance of the camera from walls and furniture, in metres."""


class Watcher:
    """Follows one robot in a house with the boxes `solids` [S, 7]."""

    def __init__(self, solids: np.ndarray) -> None:
        self._low, self._high = solids[:, :3] - solids[:, 3:6], solids[:, :3] + solids[:, 3:6]
        self._eye: np.ndarray | None = None

    def look(self, base: np.ndarray, target: np.ndarray) -> tuple[float, float, float]:
        """The camera's x, y and heading for a robot at `base` (x, y, heading) with a `target` (x, y, z)."""
        chest = np.array([base[0], base[1], CHEST])
        if self._eye is None or not self._still_sees(base, chest):
            self._eye = self._chosen(base, chest, target)
        x, y, _ = self._eye
        ahead = base[:2] + AHEAD * np.array([np.cos(base[2]), np.sin(base[2])])
        return float(x), float(y), math.atan2(ahead[1] - y, ahead[0] - x)

    def _still_sees(self, base: np.ndarray, chest: np.ndarray) -> bool:
        assert self._eye is not None
        apart, along = _apart_and_along(self._eye[None], base)
        is_good = NEAREST * 0.7 < apart[0] < FARTHEST and along[0] > BEHIND
        return bool(is_good) and not self._hidden(self._eye[None], chest)[0]

    def _chosen(self, base: np.ndarray, chest: np.ndarray, target: np.ndarray) -> np.ndarray:
        offsets = np.arange(-FARTHEST, FARTHEST + GRID, GRID)
        x, y = (part.ravel() for part in np.meshgrid(base[0] + offsets, base[1] + offsets))
        eyes = np.column_stack([x, y, np.full(len(x), EYE_HEIGHT)])
        apart, along = _apart_and_along(eyes, base)
        # From the side, the arm and what it does are in view.
        cost = np.abs(apart - APART) + 1.2 * np.abs(along) + 1.5 * self._hidden(eyes, target)
        cost += 100.0 * self._hidden(eyes, chest) + 100.0 * self._is_inside(eyes) + 10.0 * (apart < NEAREST)
        return eyes[cost.argmin()]

    def _is_inside(self, eyes: np.ndarray) -> np.ndarray:
        """bool [C]: whether `eyes` [C, 3] are in a box, or nearly."""
        low, high = self._low - MARGIN, self._high + MARGIN
        return ((eyes[:, None] > low) & (eyes[:, None] < high)).all(2).any(1)

    def _hidden(self, eyes: np.ndarray, point: np.ndarray) -> np.ndarray:
        """bool [C]: whether a box is between `eyes` [C, 3] and `point` [3]."""
        way = point - eyes[:, None]
        way = np.where(np.abs(way) < 1e-9, 1e-9, way)
        one, other = (self._low - eyes[:, None]) / way, (self._high - eyes[:, None]) / way
        enter, leave = np.minimum(one, other).max(2), np.maximum(one, other).min(2)
        return ((enter < leave) & (leave > 0.0) & (enter < 0.97)).any(1)


def _apart_and_along(eyes: np.ndarray, base: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[C] each: distances of `eyes` [C, 3] from a robot at `base`, and cosines of their directions from its heading."""
    x, y = eyes[:, 0] - base[0], eyes[:, 1] - base[1]
    apart = np.hypot(x, y)
    return apart, (x * np.cos(base[2]) + y * np.sin(base[2])) / apart.clip(0.1)
