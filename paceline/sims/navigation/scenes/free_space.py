"""Where the agent can be: how far from things it is kept, and the corners of what is free.

The agent is a disc of `AGENT_RADIUS`, its configuration space the floor without the obstacles grown by that much (as
rectangles, corners and all). Every length is compared in single precision, so four slightly different growths keep a
decision from hanging on a rounding error:

    SIGHT < NODE < CONTACT < REST

Rays of sight are stopped by obstacles grown by SIGHT. Shortest paths bend at corners grown by NODE: they are seen past
their own obstacle. Steps end at obstacles grown by CONTACT and the agent is then set back to REST. It follows that
every pose that can be reached lies outside NODE, where shortest paths are exact, and that whoever slides along a wall
neither hits that wall again nor loses sight of its corners.

Legend: P points, V corners.
"""

from __future__ import annotations

import numpy as np

from paceline.sims.navigation.scenes.scene import AGENT_RADIUS, Scene

SIGHT = AGENT_RADIUS
NODE = AGENT_RADIUS + 0.0003
CONTACT = AGENT_RADIUS + 0.0006
REST = AGENT_RADIUS + 0.0010


def is_free(scene: Scene, points: np.ndarray, clearance: float = AGENT_RADIUS) -> np.ndarray:
    """bool [P]: whether `points` [P, 2] are inside the scene and at least `clearance` from its walls and obstacles."""
    x, y = points[:, 0, None], points[:, 1, None]
    x0, y0, x1, y1 = scene.interior.grown(-clearance)
    inside = (x >= x0) & (x <= x1) & (y >= y0) & (y <= y1)
    x0, y0, x1, y1 = (scene.obstacles + np.array([-1, -1, 1, 1]) * clearance).T
    covered = (x > x0) & (x < x1) & (y > y0) & (y < y1)
    return inside[:, 0] & ~covered.any(1)


def convex_corners(scene: Scene) -> np.ndarray:
    """The convex corners of the obstacles: those of whose four quadrants only the own one is covered."""
    grown = scene.obstacles + np.array([-1, -1, 1, 1]) * NODE
    found: dict[tuple[float, float], None] = {}
    for dx, dy, columns in ((-1, -1, [0, 1]), (1, -1, [2, 1]), (1, 1, [2, 3]), (-1, 1, [0, 3])):
        corners = grown[:, columns]
        free = np.ones(len(corners), bool)
        for sx, sy in ((dx, dy), (dx, -dy), (-dx, dy)):
            free &= is_free(scene, corners + np.array([sx, sy]) * 1e-5, NODE)
        found.update(dict.fromkeys(map(tuple, np.round(corners[free], 6).tolist())))
    return np.array(list(found), np.float64).reshape(-1, 2)
