"""`Cells`: a floor with rectangular obstacles, cut at all their edges into cells that are free or covered as a whole.

So areas and connections are exact. The agent is a point here: callers grow the obstacles by its radius.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.sims.navigation.scenes.scene import Rect

_MERGED = 1e-6
"""Edges that are closer than this are one edge."""


@dataclass(frozen=True)
class Cells:
    """A grid of unequal cells: cell (i, j) reaches from `xs[i]`, `ys[j]` to `xs[i + 1]`, `ys[j + 1]`."""

    xs: np.ndarray
    ys: np.ndarray
    free: np.ndarray
    """bool [len(xs) - 1, len(ys) - 1]."""

    @classmethod
    def of(cls, floor: Rect, obstacles: Sequence[Rect]) -> Cells:
        xs = _cuts(floor.x0, floor.x1, [edge for rect in obstacles for edge in (rect.x0, rect.x1)])
        ys = _cuts(floor.y0, floor.y1, [edge for rect in obstacles for edge in (rect.y0, rect.y1)])
        free = np.ones((len(xs) - 1, len(ys) - 1), bool)
        for rect in obstacles:
            i0, i1 = np.searchsorted(xs, (rect.x0 - _MERGED, rect.x1 - _MERGED))
            j0, j1 = np.searchsorted(ys, (rect.y0 - _MERGED, rect.y1 - _MERGED))
            free[i0:i1, j0:j1] = False
        return cls(xs, ys, free)

    def parts(self) -> list[list[tuple[int, int]]]:
        """The connected parts of the free floor, each as its cells."""
        left = set(zip(*map(np.ndarray.tolist, np.nonzero(self.free)), strict=True))
        parts = []
        while left:
            part = [left.pop()]
            for i, j in part:  # grows while it is read
                for cell in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                    if cell in left:
                        left.remove(cell)
                        part.append(cell)
            parts.append(part)
        return parts

    def rect(self, cell: tuple[int, int]) -> Rect:
        i, j = cell
        return Rect(*map(float, (self.xs[i], self.ys[j], self.xs[i + 1], self.ys[j + 1])))


def _cuts(start: float, end: float, edges: Sequence[float]) -> np.ndarray:
    return np.unique(np.round([start, end, *(edge for edge in edges if start < edge < end)], 6))
