"""Objects that agents look for: the furniture of a scene by category, its distances, and episodes that begin far away.

The distance to an object is that of the shortest path until the agent touches its footprint. A shortest path ends with
a straight line to the nearest point of the footprint, so it needs no more nodes.

Legend: M objects, C categories, V nodes, P places, E episodes, B boxes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.sims.navigation.scenes.furniture import CATEGORIES
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.scene import Scene

MIN_DISTANCE = 1.5
"""Least distance from a start to the nearest object of the wanted category, in metres."""


@dataclass(frozen=True)
class Objects:
    """The objects of one scene."""

    footprints: np.ndarray
    """float64 [M, 4]."""
    categories: np.ndarray
    """int64 [M]: numbers in `CATEGORIES`."""
    of_boxes: np.ndarray
    """int64 [B]: the object that each box of the scene belongs to; M for none."""

    @classmethod
    def of(cls, scene: Scene) -> Objects:
        pieces = [piece for piece in scene.furniture if piece.kind in CATEGORIES]
        of_boxes = np.full(len(scene.boxes), len(pieces))
        footprints = np.empty((len(pieces), 4))
        for number, piece in enumerate(pieces):
            boxes = scene.boxes[list(piece.boxes)]
            footprints[number] = [*boxes[:, :2].min(0), *boxes[:, 2:4].max(0)]
            of_boxes[list(piece.boxes)] = number
        return cls(footprints, np.array([CATEGORIES.index(piece.kind) for piece in pieces], np.int64), of_boxes)

    def by_category(self, distances: np.ndarray) -> np.ndarray:
        """[P, C]: the least of the `distances` [P, M] in each category; inf without objects."""
        least = np.full((len(distances), len(CATEGORIES)), np.inf)
        for number, category in enumerate(self.categories):
            np.minimum(least[:, category], distances[:, number], out=least[:, category])
        return least

    def episodes(self, scene: Scene, graph: Graph, starts: np.ndarray, count: int) -> np.ndarray:
        """float32 [E, 5]: x, y and heading of one of `starts` [P, 3], a category, and its distance.

        The same for the same scene. Without any category that is far enough from a start, all categories are -1.
        """
        distances = self.by_category(graph.to_rects(self.footprints, starts[:, :2].astype(np.float64)))
        pairs = np.argwhere(np.isfinite(distances) & (distances >= MIN_DISTANCE))
        if not len(pairs):
            return np.tile(np.array([*starts[0], -1, 0.0], np.float32), (count, 1))
        rng = np.random.default_rng((11, scene.seed + 1, len(scene.boxes)))
        start, category = pairs[rng.permutation(max(len(pairs), count))[:count] % len(pairs)].T
        return np.column_stack([starts[start], category, distances[start, category]]).astype(np.float32)
