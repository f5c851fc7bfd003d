"""`WallFrame`: coordinates along a wall of a room, so that a kitchen is laid out once for all four walls."""

from __future__ import annotations

from typing import NamedTuple

from paceline.sims.navigation.scenes.scene import Rect


class WallFrame(NamedTuple):
    """A place is `a` metres along the wall and `b` metres away from it.

    Sides of a room are 0 to 3: low x, low y, high x, high y. A mirrored frame runs from the other end of the wall.
    """

    room: Rect
    side: int
    mirrored: bool

    @property
    def length(self) -> float:
        return self.room.depth if self.side in (0, 2) else self.room.width

    @property
    def depth(self) -> float:
        return self.room.width if self.side in (0, 2) else self.room.depth

    @property
    def turn(self) -> int:
        """1 if a rotation from a to b is counter-clockwise on the floor, -1 if it is clockwise."""
        return (1 if self.side in (1, 2) else -1) * (-1 if self.mirrored else 1)

    def point(self, a: float, b: float) -> tuple[float, float]:
        x0, y0, x1, y1 = self.room
        a = self.length - a if self.mirrored else a
        x, y = ((x0 + b, y0 + a), (x0 + a, y0 + b), (x1 - b, y0 + a), (x0 + a, y1 - b))[self.side]
        return round(x, 4), round(y, 4)

    def rect(self, a0: float, b0: float, a1: float, b1: float) -> Rect:
        (xa, ya), (xb, yb) = self.point(a0, b0), self.point(a1, b1)
        return Rect(min(xa, xb), min(ya, yb), max(xa, xb), max(ya, yb))

    def outward(self) -> tuple[float, float]:
        """The unit vector away from the wall."""
        return ((1.0, 0.0), (0.0, 1.0), (-1.0, 0.0), (0.0, -1.0))[self.side]

    def local(self, rect: Rect) -> Rect:
        """A rectangle of the floor in coordinates of the wall: x0 and x1 are along it, y0 and y1 away from it."""
        x0, y0, x1, y1 = self.room
        low_b, high_b = (
            (rect.x0 - x0, rect.x1 - x0),
            (rect.y0 - y0, rect.y1 - y0),
            (x1 - rect.x1, x1 - rect.x0),
            (y1 - rect.y1, y1 - rect.y0),
        )[self.side]
        low_a, high_a = (rect.y0 - y0, rect.y1 - y0) if self.side in (0, 2) else (rect.x0 - x0, rect.x1 - x0)
        if self.mirrored:
            low_a, high_a = self.length - high_a, self.length - low_a
        return Rect(low_a, low_b, high_a, high_b)
