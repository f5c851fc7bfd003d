"""Furniture of several heights, placed so that every place stays reachable and no gap is ambiguous.

The gap between two neighbours is either too narrow to pass (at most `Gaps.merged`) or wide enough (at least
`Gaps.passable`). The free floor of a room is connected and includes its doors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from paceline.sims.navigation.scenes.cells import Cells
from paceline.sims.navigation.scenes.scene import AGENT_RADIUS, Rect

ATTEMPTS = 6
"""Places to try for one piece before the next piece is drawn."""

Span = tuple[float, float]
Solid = tuple[Rect, float, float]
"""A footprint, and the heights of its lower and upper side."""


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """The gaps between neighbours that suit an agent."""

    radius: float = AGENT_RADIUS
    merged: float = 0.1
    """Largest gap that is too narrow to pass."""
    passable: float = 0.5
    """Least gap that is wide enough."""


NAVIGATION_GAPS = Gaps()


@dataclass(frozen=True)
class Kind:
    """A kind of furniture: ranges of its width along the wall, depth and height, and where it stands."""

    width: Span
    depth: Span
    height: Span
    place: str = "wall"
    """"wall", "corner" or "middle"."""
    shape: Callable[[Rect, float, int], list[Solid]] | None = None
    """From the footprint, the height and the side of the wall (0 to 3: low x, low y, high x, high y) to the solids;
    None for a plain box."""


def _table(area: Rect, height: float, side: int) -> list[Solid]:
    leg = Rect(
        area.x0 + area.width * 0.4, area.y0 + area.depth * 0.4, area.x1 - area.width * 0.4, area.y1 - area.depth * 0.4
    )
    return [(area, height - 0.06, height), (leg, 0.0, height - 0.06)]


def _seat_with_back(area: Rect, height: float, side: int) -> list[Solid]:
    return [(area, 0.0, 0.5 * height), (_strip(area, side, 0.22), 0.5 * height, height)]


def _strip(area: Rect, side: int, width: float) -> Rect:
    """The part of `area` along the side at the wall."""
    return (
        area._replace(x1=area.x0 + width),
        area._replace(y1=area.y0 + width),
        area._replace(x0=area.x1 - width),
        area._replace(y0=area.y1 - width),
    )[side]


KINDS: dict[str, Kind] = {
    "table": Kind((0.9, 1.8), (0.7, 1.1), (0.70, 0.78), "middle", _table),
    "block": Kind((0.4, 1.0), (0.4, 0.8), (0.3, 0.5), "middle"),
    "pillar": Kind((0.25, 0.4), (0.25, 0.4), (2.5, 2.5), "middle"),
    "sofa": Kind((1.4, 2.3), (0.8, 0.95), (0.75, 0.9), "wall", _seat_with_back),
    "bed": Kind((1.2, 1.8), (1.9, 2.1), (0.9, 1.1), "wall", _seat_with_back),
    "shelf": Kind((0.6, 1.8), (0.3, 0.4), (1.5, 2.1)),
    "wardrobe": Kind((0.9, 1.9), (0.55, 0.65), (2.0, 2.3), "corner"),
    "counter": Kind((1.0, 2.4), (0.55, 0.65), (0.88, 0.94), "corner"),
    "desk": Kind((1.0, 1.5), (0.6, 0.75), (0.7, 0.76), "wall", _table),
    "chest": Kind((0.5, 1.2), (0.4, 0.6), (0.4, 1.1)),
}
SIMPLE_KINDS = ("block", "shelf", "wardrobe", "counter", "chest")
"""Kinds that are one box each."""


CATEGORIES = tuple(kind for kind in KINDS if kind not in ("block", "pillar"))
"""Kinds that agents can be asked to find."""


def furnish(
    rng: np.random.Generator,
    room: Rect,
    keep_free: Sequence[Rect],
    kinds: Sequence[str],
    num_pieces: int,
    max_boxes: int,
    *,
    gaps: Gaps = NAVIGATION_GAPS,
    others: Sequence[Rect] = (),
) -> list[tuple[str, list[Solid]]]:
    """Up to `num_pieces` pieces in `room`, of at most `max_boxes` boxes in total, none of them on `keep_free`.

    A piece is a kind and its solids. `others` are the footprints of what stands in the room already.
    """
    pieces: list[tuple[str, list[Solid]]] = []
    footprints = list(others)
    for _ in range(num_pieces):
        name = str(rng.choice(list(kinds)))
        kind = KINDS[name]
        for _ in range(ATTEMPTS):
            placed = _place(rng, room, kind)
            if placed is None or not _fits(placed[0], room, footprints, keep_free, gaps):
                continue
            solids = _solids(rng, kind, *placed)
            if sum(len(boxes) for _, boxes in pieces) + len(solids) > max_boxes:
                return pieces
            pieces.append((name, solids))
            footprints.append(placed[0])
            break
    return pieces


def _place(rng: np.random.Generator, room: Rect, kind: Kind) -> tuple[Rect, int] | None:
    """A footprint in the room, and the side of the room at its back; None if the piece is too large."""
    width, depth = (round(float(rng.uniform(*span)), 2) for span in (kind.width, kind.depth))
    side = int(rng.integers(4))
    if side in (0, 2):
        width, depth = depth, width
    spare_x, spare_y = room.width - width, room.depth - depth
    if min(spare_x, spare_y) < 0:
        return None
    x, y = (round(float(start + rng.uniform(0, spare)), 2) for start, spare in ((room.x0, spare_x), (room.y0, spare_y)))
    at_end = bool(rng.integers(2))
    if kind.place != "middle":
        x = {0: room.x0, 2: room.x1 - width}.get(side, x)
        y = {1: room.y0, 3: room.y1 - depth}.get(side, y)
    if kind.place == "corner" and side in (0, 2):
        y = room.y1 - depth if at_end else room.y0
    elif kind.place == "corner":
        x = room.x1 - width if at_end else room.x0
    x, y = round(x, 2), round(y, 2)
    return Rect(x, y, round(x + width, 2), round(y + depth, 2)), side


def _solids(rng: np.random.Generator, kind: Kind, area: Rect, side: int) -> list[Solid]:
    height = round(float(rng.uniform(*kind.height)), 2)
    return [(area, 0.0, height)] if kind.shape is None else kind.shape(area, height, side)


def _fits(area: Rect, room: Rect, others: Sequence[Rect], keep_free: Sequence[Rect], gaps: Gaps) -> bool:
    walls = (area.x0 - room.x0, area.y0 - room.y0, room.x1 - area.x1, room.y1 - area.y1)
    found = [*walls, *(area.gap(other) for other in others)]
    if any(gap < -1e-6 or gaps.merged < gap < gaps.passable for gap in found):
        return False
    if any(area.gap(zone) < 0 for zone in keep_free):
        return False
    floor = room.grown(-gaps.radius)
    return is_connected(floor, [other.grown(gaps.radius) for other in (*others, area)])


def is_connected(floor: Rect, obstacles: Sequence[Rect]) -> bool:
    """Whether the floor without the obstacles is connected and not empty."""
    return len(Cells.of(floor, obstacles).parts()) == 1
