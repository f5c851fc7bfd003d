"""`Scene`: one apartment as a list of axis-aligned boxes. Lengths are metres, z points up, the floor is z = 0.

Legend: B boxes, Q rectangles.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paceline.errors import UsageError

CEILING = 2.5
AGENT_HEIGHT = 1.5
"""Boxes that begin above this height, for example door lintels, do not block the agent."""
AGENT_RADIUS = 0.1


class Rect(NamedTuple):
    """An axis-aligned rectangle on the floor."""

    x0: float
    y0: float
    x1: float
    y1: float

    @property
    def width(self) -> float:
        return self.x1 - self.x0

    @property
    def depth(self) -> float:
        return self.y1 - self.y0

    def grown(self, margin: float) -> Rect:
        return Rect(self.x0 - margin, self.y0 - margin, self.x1 + margin, self.y1 + margin)

    def gap(self, other: Rect) -> float:
        """The distance in the maximum norm; negative if the rectangles overlap."""
        return max(self.x0 - other.x1, other.x0 - self.x1, self.y0 - other.y1, other.y0 - self.y1)

    def contains(self, other: Rect) -> bool:
        return self.x0 <= other.x0 and self.y0 <= other.y0 and self.x1 >= other.x1 and self.y1 >= other.y1


class Piece(NamedTuple):
    """A piece of furniture."""

    kind: str
    boxes: tuple[int, ...]
    """The numbers of its boxes in the scene."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """An apartment: its boxes, and the rectangle `interior` within its outer walls.

    Scenes made by hand must not have gaps exactly as wide as the agent, within a few millimetres: rounding would
    decide whether the agent can pass.
    """

    boxes: np.ndarray
    """float64 [B, 6]: x0, y0, x1, y1, z0, z1. They include the outer walls, for rendering."""
    colors: np.ndarray
    """uint8 [B, 3]."""
    interior: Rect
    floor_color: tuple[int, int, int] = (150, 130, 110)
    ceiling_color: tuple[int, int, int] = (225, 225, 220)
    rooms: tuple[Rect, ...] = ()
    furniture: tuple[Piece, ...] = ()
    radius: float = AGENT_RADIUS
    """The radius of the agent that moves here."""
    seed: int = -1
    """The seed that it was generated from; -1 for a scene made by hand."""
    obstacles: np.ndarray = field(init=False)
    """float64 [Q, 4]: the footprints within the interior that block the agent, none inside another."""

    def __post_init__(self) -> None:
        boxes = np.asarray(self.boxes, np.float64)
        if boxes.ndim != 2 or boxes.shape[1] != 6 or not np.isfinite(boxes).all():
            raise UsageError(f"boxes of a scene have shape {boxes.shape}; allowed: finite numbers [boxes, 6]")
        if not (boxes[:, [0, 1, 4]] < boxes[:, [2, 3, 5]]).all():
            raise UsageError("a box of the scene has no extent; allowed: x0 < x1, y0 < y1 and z0 < z1")
        if np.shape(self.colors) != (len(boxes), 3):
            raise UsageError(f"colours of a scene have shape {np.shape(self.colors)}; allowed: {(len(boxes), 3)}")
        if any(not piece.boxes or not set(piece.boxes) <= set(range(len(boxes))) for piece in self.furniture):
            raise UsageError(f"a piece of furniture has no boxes, or unknown ones; allowed: 0 to {len(boxes) - 1}")
        if min(self.interior.width, self.interior.depth) <= 2 * self.radius:
            raise UsageError(
                f"the interior {tuple(self.interior)} of a scene is narrower than the agent; allowed: wider than "
                f"{2 * self.radius:g} m both ways"
            )
        object.__setattr__(self, "boxes", boxes)
        object.__setattr__(self, "obstacles", _footprints(boxes, self.interior))


def _footprints(boxes: np.ndarray, interior: Rect) -> np.ndarray:
    rects = [Rect(*map(float, box[:4])) for box in boxes if box[4] < AGENT_HEIGHT]
    rects = [rect for rect in dict.fromkeys(rects) if rect.gap(interior) < 0]
    outermost = [rect for rect in rects if not any(other != rect and other.contains(rect) for other in rects)]
    return np.array(outermost, np.float64).reshape(-1, 4)
