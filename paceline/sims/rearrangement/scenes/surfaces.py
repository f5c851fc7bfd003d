"""The surfaces of furniture that objects can lie on."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.sims.navigation.scenes.furniture import Solid
from paceline.sims.navigation.scenes.scene import Rect
from paceline.sims.rearrangement.scenes.house import SURFACE_KINDS, Surface

HEIGHTS = (0.3, 1.0)
"""Surfaces between these heights are within reach of the arm."""


def surfaces_of(kind: str, solids: Sequence[Solid]) -> list[Surface]:
    """The surface of a piece of furniture of navigation's `KINDS`, if it has one.

    The first solid of a piece is its table top, seat or block. A solid on top of it is the back of a seat.
    """
    area, _, top = solids[0]
    if kind not in SURFACE_KINDS or not HEIGHTS[0] <= top <= HEIGHTS[1]:
        return []
    for other, low, _ in solids[1:]:
        if low == top:
            area = _without(area, other)
    return [Surface(area, top, kind)]


def _without(area: Rect, strip: Rect) -> Rect:
    """The rest of `area` beside a strip along one of its sides."""
    if strip.width < area.width:
        return area._replace(x0=strip.x1) if strip.x0 == area.x0 else area._replace(x1=strip.x0)
    return area._replace(y0=strip.y1) if strip.y0 == area.y0 else area._replace(y1=strip.y0)
