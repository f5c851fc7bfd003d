"""Where the agent can be: its distance from obstacles, and the corners of the free space.

The agent is a disc of the scene's radius. Its configuration space is the floor without the obstacles, grown by the
radius as rectangles. Lengths are compared in single precision, so four slightly different growths keep rounding errors
from deciding:

    SIGHT < NODE < CONTACT < REST

Obstacles grown by SIGHT block lines of sight. Shortest paths bend at corners grown by NODE, which their own obstacle
does not hide. Steps end at obstacles grown by CONTACT, and the agent is then set back to REST. Therefore every
reachable pose lies outside NODE, where shortest paths are exact, and an agent that slides along a wall neither hits it
again nor loses sight of its corners.

Legend: P points, V corners.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from paceline.sims.navigation.scenes.scene import AGENT_RADIUS, Scene


class Growths(NamedTuple):
    """The four growths of obstacles for an agent."""

    sight: float
    node: float
    contact: float
    rest: float

    @classmethod
    def of(cls, radius: float) -> Growths:
        return cls(radius, radius + 0.0003, radius + 0.0006, radius + 0.0010)


SIGHT, NODE, CONTACT, REST = Growths.of(AGENT_RADIUS)


def is_free(scene: Scene, points: np.ndarray, clearance: float | None = None) -> np.ndarray:
    """bool [P]: whether `points` [P, 2] are inside the scene, at least `clearance` from walls and obstacles, by default
    the agent's radius."""
    clearance = scene.radius if clearance is None else clearance
    x, y = points[:, 0, None], points[:, 1, None]
    x0, y0, x1, y1 = scene.interior.grown(-clearance)
    inside = (x >= x0) & (x <= x1) & (y >= y0) & (y <= y1)
    x0, y0, x1, y1 = (scene.obstacles + np.array([-1, -1, 1, 1]) * clearance).T
    covered = (x > x0) & (x < x1) & (y > y0) & (y < y1)
    return inside[:, 0] & ~covered.any(1)


def convex_corners(scene: Scene) -> np.ndarray:
    """float64 [V, 2]: corners of obstacles whose other three quadrants are free."""
    node = Growths.of(scene.radius).node
    grown = scene.obstacles + np.array([-1, -1, 1, 1]) * node
    found: dict[tuple[float, float], None] = {}
    for dx, dy, columns in ((-1, -1, [0, 1]), (1, -1, [2, 1]), (1, 1, [2, 3]), (-1, 1, [0, 3])):
        corners = grown[:, columns]
        free = np.ones(len(corners), bool)
        for sx, sy in ((dx, dy), (dx, -dy), (-dx, dy)):
            free &= is_free(scene, corners + np.array([sx, sy]) * 1e-5, node)
        found.update(dict.fromkeys(map(tuple, np.round(corners[free], 6).tolist())))
    return np.array(list(found), np.float64).reshape(-1, 2)
