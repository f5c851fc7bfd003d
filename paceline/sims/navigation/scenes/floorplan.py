"""Floor plans: walls divide a rectangle recursively into rooms and corridors.

Every wall has at least one door between its two sides, so every room can be reached from every other. Coordinates are
whole centimetres, so that edges meet exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paceline.sims.navigation.scenes.scene import Rect

LEAST_SIDE = 2.2
"""Least side of a room. It guarantees a place for a door in every wall: rooms of this size on both sides cut n metres
of wall into fewer than n / 1.1 pieces, so one piece is longer than a narrow door needs."""
DOOR_WIDTHS = (0.8, 1.0)
DOOR_MARGIN = 0.12
"""Width of wall beside a door, so that no crossing wall blocks it."""
CORRIDOR_WIDTHS = (1.2, 1.7)
CORRIDOR_FROM_ROOMS = 5
WALL_THICKNESSES = (0.1, 0.12, 0.15)


@dataclass(frozen=True)
class Room:
    area: Rect
    is_corridor: bool = False


@dataclass(frozen=True)
class Wall:
    """A wall at a fixed x (axis 0) or y (axis 1), with doors as intervals along it."""

    axis: int
    low: float
    high: float
    start: float
    end: float
    doors: list[tuple[float, float]] = field(default_factory=list)

    def solid_parts(self) -> list[Rect]:
        """The rectangles between the doors."""
        ends = [self.start, *(end for door in sorted(self.doors) for end in door), self.end]
        return [self.across(a, b) for a, b in zip(ends[::2], ends[1::2], strict=True) if b > a]

    def across(self, start: float, end: float) -> Rect:
        """The wall's rectangle between two positions along it."""
        return Rect(self.low, start, self.high, end) if self.axis == 0 else Rect(start, self.low, end, self.high)


@dataclass
class FloorPlan:
    interior: Rect
    rooms: list[Room] = field(default_factory=list)
    walls: list[Wall] = field(default_factory=list)


def draw_plan(
    rng: np.random.Generator, interior: Rect, num_rooms: int, *, loop_chance: float, open_chance: float
) -> FloorPlan:
    """Divide `interior` into up to `num_rooms` rooms.

    Each additional door appears with probability `loop_chance`. With probability `open_chance`, a wall between two
    rooms has a wide opening instead of doors.
    """
    plan = FloorPlan(interior)
    thickness = float(rng.choice(WALL_THICKNESSES))
    _divide(rng, plan, interior, num_rooms, thickness)
    for wall in plan.walls:
        shared = _shared_lengths(plan.rooms, wall)
        if shared == [(wall.start, wall.end)] and rng.random() < open_chance:
            wall.doors.append(_wide_opening(rng, wall))
        else:
            _cut_doors(rng, shared, wall, loop_chance)
    return plan


def _divide(rng: np.random.Generator, plan: FloorPlan, area: Rect, num_rooms: int, thickness: float) -> None:
    axis = 0 if area.width >= area.depth else 1
    if num_rooms >= CORRIDOR_FROM_ROOMS and rng.random() < 0.7:
        width = _centimetres(rng.uniform(*CORRIDOR_WIDTHS))
        if _length(area, 1 - axis) >= 2 * LEAST_SIDE + 2 * thickness + width:
            _divide_by_corridor(rng, plan, area, num_rooms, thickness, 1 - axis, width)
            return
    spare = _length(area, axis) - 2 * LEAST_SIDE - thickness
    if num_rooms < 2 or spare < 0:
        plan.rooms.append(Room(area))
        return
    num_low = num_rooms // 2 if rng.random() < 0.5 else num_rooms - num_rooms // 2
    share = np.clip(num_low / num_rooms + rng.uniform(-0.12, 0.12), 0.0, 1.0)
    at = _centimetres(_start(area, axis) + LEAST_SIDE + spare * share)
    low, high = _cut(area, axis, at, at + thickness)
    plan.walls.append(_wall(area, axis, at, at + thickness))
    _divide(rng, plan, low, num_low, thickness)
    _divide(rng, plan, high, num_rooms - num_low, thickness)


def _divide_by_corridor(
    rng: np.random.Generator, plan: FloorPlan, area: Rect, num_rooms: int, thickness: float, axis: int, width: float
) -> None:
    """Divide `area` by a corridor along its whole length, with rooms on both sides; `axis` is perpendicular to it."""
    spare = _length(area, axis) - 2 * LEAST_SIDE - 2 * thickness - width
    at = _centimetres(_start(area, axis) + LEAST_SIDE + spare * rng.uniform(0.2, 0.8))
    low, rest = _cut(area, axis, at, at + thickness)
    corridor, high = _cut(rest, axis, at + thickness + width, at + 2 * thickness + width)
    plan.walls.append(_wall(area, axis, at, at + thickness))
    plan.walls.append(_wall(area, axis, at + thickness + width, at + 2 * thickness + width))
    plan.rooms.append(Room(corridor, is_corridor=True))
    share = _length(low, axis) / (_length(low, axis) + _length(high, axis))
    num_low = int(np.clip(round((num_rooms - 1) * share), 1, num_rooms - 2))
    _divide(rng, plan, low, num_low, thickness)
    _divide(rng, plan, high, num_rooms - 1 - num_low, thickness)


def _shared_lengths(rooms: list[Room], wall: Wall) -> list[tuple[float, float]]:
    """The intervals along the wall with one room on each side and space for a door."""
    along = 1 - wall.axis
    low = [room.area for room in rooms if abs(_end(room.area, wall.axis) - wall.low) < 1e-6]
    high = [room.area for room in rooms if abs(_start(room.area, wall.axis) - wall.high) < 1e-6]
    # Rooms may touch the line of the wall beyond its ends.
    shared = [
        (max(_start(a, along), _start(b, along), wall.start), min(_end(a, along), _end(b, along), wall.end))
        for a in low
        for b in high
    ]
    return [(start, end) for start, end in shared if end - start >= DOOR_WIDTHS[0] + 2 * DOOR_MARGIN - 1e-6]


def _cut_doors(rng: np.random.Generator, shared: list[tuple[float, float]], wall: Wall, loop_chance: float) -> None:
    needed = int(rng.integers(len(shared)))
    for index, (start, end) in enumerate(shared):
        if index == needed or rng.random() < loop_chance:
            width = _centimetres(min(rng.uniform(*DOOR_WIDTHS), end - start - 2 * DOOR_MARGIN))
            at = _centimetres(start + DOOR_MARGIN + rng.random() * (end - start - 2 * DOOR_MARGIN - width))
            wall.doors.append((at, _centimetres(at + width)))


def _wide_opening(rng: np.random.Generator, wall: Wall) -> tuple[float, float]:
    """An opening from one end of the wall to near its middle."""
    width = _centimetres((wall.end - wall.start) * rng.uniform(0.35, 0.6))
    if rng.random() < 0.5:
        return wall.start, _centimetres(wall.start + width)
    return _centimetres(wall.end - width), wall.end


def _wall(area: Rect, axis: int, low: float, high: float) -> Wall:
    return Wall(axis, _centimetres(low), _centimetres(high), _start(area, 1 - axis), _end(area, 1 - axis))


def _cut(area: Rect, axis: int, low: float, high: float) -> tuple[Rect, Rect]:
    """The two parts of `area` on either side of the band from `low` to `high`."""
    low, high = _centimetres(low), _centimetres(high)
    if axis == 0:
        return area._replace(x1=low), area._replace(x0=high)
    return area._replace(y1=low), area._replace(y0=high)


def _start(area: Rect, axis: int) -> float:
    return area[axis]


def _end(area: Rect, axis: int) -> float:
    return area[axis + 2]


def _length(area: Rect, axis: int) -> float:
    return area[axis + 2] - area[axis]


def _centimetres(length: float) -> float:
    return round(float(length), 2)
