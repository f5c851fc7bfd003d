"""The farthest place of a scene from each of some points: the largest distance that an agent can walk away.

In a floor without loops, the farthest place is a corner of the floor. Around a loop, it can also be where two equally
long ways meet. So the candidates are all corners, and places all over the floor.

Legend: P candidates, G points.
"""

from __future__ import annotations

import numpy as np

from paceline.sims.navigation.scenes.free_space import Growths, is_free
from paceline.sims.navigation.scenes.scene import Scene


def farthest_places(candidates: np.ndarray, distances: np.ndarray) -> np.ndarray:
    """float64 [G, 3]: x, y and distance of the farthest of `candidates` [P, 2], from their `distances` [P, G]."""
    reachable = np.where(np.isfinite(distances), distances, -1.0)
    best = reachable.argmax(0)
    return np.column_stack([candidates[best], reachable[best, np.arange(distances.shape[1])]])


def floor_corners(scene: Scene) -> np.ndarray:
    """float64 [P, 2]: all corners of the floor where the agent can be, of the outer walls and of obstacles, and where
    two of them meet."""
    node = Growths.of(scene.radius).node
    grown = scene.obstacles + np.array([-1, -1, 1, 1]) * node
    rects = np.concatenate([grown, [scene.interior.grown(-node)]])
    x0, y0, x1, y1 = rects.T
    edges_x, along_y = np.concatenate([x0, x1]), np.tile(np.column_stack([y0, y1]), (2, 1))
    edges_y, along_x = np.concatenate([y0, y1]), np.tile(np.column_stack([x0, x1]), (2, 1))
    meet = (edges_y >= along_y[:, :1]) & (edges_y <= along_y[:, 1:])
    meet &= (edges_x[:, None] >= along_x[:, 0]) & (edges_x[:, None] <= along_x[:, 1])
    vertical, horizontal = np.nonzero(meet)
    points = np.unique(np.column_stack([edges_x[vertical], edges_y[horizontal]]), axis=0)
    return points[is_free(scene, points, node)]
