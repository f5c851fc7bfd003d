"""`Plan`: a floor plan as its file describes it, and its conversion to a `Scene` and back.

A plan is a rectangle within four outer walls, with its lower left corner at the origin. Lengths are metres.
docs/floor_plans.md describes the file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.cells import Cells
from paceline.sims.navigation.scenes.scene import AGENT_HEIGHT, CEILING, Piece, Rect, Scene

VERSION = 1
"""Version of the file format."""
Color = tuple[int, int, int]
Point = tuple[float, float]

WALL_THICKNESS = 0.1
OUTER_THICKNESS = 0.2
DOOR_HEIGHT = 2.0
WALL_COLOR: Color = (205, 200, 190)
FURNITURE_COLOR: Color = (150, 110, 75)
FLOOR_COLOR: Color = (150, 130, 110)
CEILING_COLOR: Color = (225, 225, 220)
_SHORTEST = 1e-6
"""Shorter parts of walls are left out: footprints are rounded to so much."""


@dataclass(frozen=True, kw_only=True)
class PlanDoor:
    """An opening in a wall, with wall above it."""

    at: float
    """Distance from the start of the wall to the near edge of the door."""
    width: float
    height: float = DOOR_HEIGHT


@dataclass(frozen=True, kw_only=True)
class PlanWall:
    """A wall from the floor to the ceiling along a line parallel to x or y, which is the middle of its thickness."""

    start: Point
    end: Point
    thickness: float = WALL_THICKNESS
    color: Color = WALL_COLOR
    doors: tuple[PlanDoor, ...] = ()

    @property
    def length(self) -> float:
        return abs(self.end[0] - self.start[0]) + abs(self.end[1] - self.start[1])

    def between(self, near: float, far: float) -> Rect:
        """The wall's footprint between two distances from its start."""
        ends = []
        for distance in (near, far):
            share = distance / self.length
            ends.append([a + (b - a) * share for a, b in zip(self.start, self.end, strict=True)])
        half = self.thickness / 2
        grow_x, grow_y = (half, 0.0) if self.start[0] == self.end[0] else (0.0, half)
        (ax, ay), (bx, by) = ends
        edges = (min(ax, bx) - grow_x, min(ay, by) - grow_y, max(ax, bx) + grow_x, max(ay, by) + grow_y)
        return Rect(*(round(edge, 6) for edge in edges))

    def opening(self, door: PlanDoor) -> Rect | None:
        """The footprint of a door. None if it lies beyond the ends of the wall."""
        near, far = max(door.at, 0.0), min(door.at + door.width, self.length)
        return self.between(near, far) if far - near > _SHORTEST else None

    def solids(self) -> list[tuple[Rect, float, float]]:
        """Footprints and heights of the wall: first the parts between its doors, then those above them."""
        parts, end = [], 0.0
        for door in sorted(self.doors, key=lambda door: door.at):
            near = min(door.at, self.length)
            if near - end > _SHORTEST:
                parts.append((self.between(end, near), 0.0, CEILING))
            end = max(end, door.at + door.width)
        if self.length - end > _SHORTEST:
            parts.append((self.between(end, self.length), 0.0, CEILING))
        above = [(self.opening(door), door.height) for door in self.doors if door.height < CEILING]
        return parts + [(rect, height, CEILING) for rect, height in above if rect is not None]


@dataclass(frozen=True, kw_only=True)
class PlanBox:
    """A piece of furniture, or a part of one."""

    area: Rect
    heights: tuple[float, float]
    """Of its lower and upper side."""
    category: str = ""
    """One of `furniture.KINDS`, or empty."""
    color: Color = FURNITURE_COLOR


@dataclass(frozen=True, kw_only=True)
class PlanRoom:
    area: Rect
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    size: Point
    """Width (x) and depth (y) of the floor within the outer walls."""
    outer_thickness: float = OUTER_THICKNESS
    outer_colors: tuple[Color, Color, Color, Color] = (WALL_COLOR,) * 4
    """Of the outer walls at low x, high x, low y and high y."""
    walls: tuple[PlanWall, ...] = ()
    furniture: tuple[PlanBox, ...] = ()
    rooms: tuple[PlanRoom, ...] = ()
    floor_color: Color = FLOOR_COLOR
    ceiling_color: Color = CEILING_COLOR

    @property
    def interior(self) -> Rect:
        return Rect(0.0, 0.0, *self.size)

    def scene(self) -> Scene:
        """The outer walls, the inner walls and the furniture as boxes, in the order of the file."""
        solids = [(rect, 0.0, CEILING, color) for rect, color in zip(self._outer(), self.outer_colors, strict=True)]
        for wall in self.walls:
            solids += [(*solid, wall.color) for solid in wall.solids()]
        solids += [(box.area, *box.heights, box.color) for box in self.furniture]
        return Scene(
            boxes=np.array([(*rect, low, high) for rect, low, high, _ in solids]),
            colors=np.array([color for *_, color in solids], np.uint8),
            interior=self.interior,
            floor_color=self.floor_color,
            ceiling_color=self.ceiling_color,
            rooms=tuple(room.area for room in self.rooms),
            furniture=tuple(self._pieces(len(solids) - len(self.furniture))),
        )

    def _pieces(self, first: int) -> list[Piece]:
        """The furniture with a category; its first box is number `first` of the scene. Boxes of one category that
        follow each other are one piece, as long as they cover the whole rectangle around them."""
        pieces: list[Piece] = []
        for number, box in enumerate(self.furniture):
            kind, boxes = pieces[-1] if pieces else ("", (-1,))
            follows = kind == box.category and boxes[-1] == first + number - 1
            if follows and _fill([*(self.furniture[own - first].area for own in boxes), box.area]):
                pieces[-1] = Piece(kind, (*boxes, first + number))
            elif box.category:
                pieces.append(Piece(box.category, (first + number,)))
        return pieces

    def _outer(self) -> list[Rect]:
        inner, outer = self.interior, self.interior.grown(self.outer_thickness)
        return [
            Rect(outer.x0, outer.y0, inner.x0, outer.y1),
            Rect(inner.x1, outer.y0, outer.x1, outer.y1),
            Rect(inner.x0, outer.y0, inner.x1, inner.y0),
            Rect(inner.x0, inner.y1, inner.x1, outer.y1),
        ]

    def text(self) -> str:
        """The plan's file, with one line per wall and piece of furniture."""
        fields = []
        for name, value in self.content().items():
            lines = json.dumps(value)
            if value and isinstance(value, list) and isinstance(value[0], dict):
                lines = "[\n" + ",\n".join(f"    {json.dumps(one)}" for one in value) + "\n  ]"
            fields.append(f"  {json.dumps(name)}: {lines}")
        return "{\n" + ",\n".join(fields) + "\n}\n"

    def content(self) -> dict[str, Any]:
        """The content of the plan's file."""
        return {
            "version": VERSION,
            "size": list(self.size),
            "floor_color": list(self.floor_color),
            "ceiling_color": list(self.ceiling_color),
            "outer_walls": {"thickness": self.outer_thickness, "color": [list(color) for color in self.outer_colors]},
            "rooms": [_without_empty({"name": room.name, "area": list(room.area)}) for room in self.rooms],
            "walls": [_wall_content(wall) for wall in self.walls],
            "furniture": [
                _without_empty(
                    {
                        "category": box.category,
                        "area": list(box.area),
                        "heights": list(box.heights),
                        "color": list(box.color),
                    }
                )
                for box in self.furniture
            ],
        }


def _fill(areas: Sequence[Rect]) -> bool:
    """Whether rectangles cover the whole rectangle around them."""
    x0, y0, x1, y1 = zip(*areas, strict=True)
    return not Cells.of(Rect(min(x0), min(y0), max(x1), max(y1)), areas).free.any()


def plan_of(scene: Scene) -> Plan:
    """The plan of a scene whose first four boxes are its outer walls, as in generated scenes.

    Every wall box becomes a wall. A box above a door becomes a wall that is a door from end to end. So the plan's
    scene has the same boxes in the same order.
    """
    boxes, colors = scene.boxes.tolist(), [_color(color) for color in scene.colors]
    thickness = round(-boxes[0][0], 6) if boxes else 0.0
    outer = Plan(size=(scene.interior.x1, scene.interior.y1), outer_thickness=thickness)
    if [tuple(box) for box in boxes[:4]] != [(*rect, 0.0, CEILING) for rect in outer._outer()]:
        raise UsageError("the scene has no plan; allowed: an interior from (0, 0), and the four outer walls first")
    inner, categories = range(4, len(boxes)), {at: piece.kind for piece in scene.furniture for at in piece.boxes}
    first = min([*categories, next((at for at in inner if not _is_structure(boxes[at])), len(boxes))])
    return Plan(
        size=outer.size,
        outer_thickness=thickness,
        outer_colors=(colors[0], colors[1], colors[2], colors[3]),
        walls=tuple(_wall_of(boxes[at], colors[at]) for at in range(4, first)),
        furniture=tuple(
            PlanBox(
                area=Rect(*boxes[at][:4]),
                heights=(boxes[at][4], boxes[at][5]),
                category=categories.get(at, ""),
                color=colors[at],
            )
            for at in range(first, len(boxes))
        ),
        rooms=tuple(PlanRoom(area=room) for room in scene.rooms),
        floor_color=scene.floor_color,
        ceiling_color=scene.ceiling_color,
    )


def _is_structure(box: list[float]) -> bool:
    return box[5] == CEILING and (box[4] == 0.0 or box[4] >= AGENT_HEIGHT)


def _wall_of(box: list[float], color: Color) -> PlanWall:
    x0, y0, x1, y1, low, _ = box
    along_x = x1 - x0 >= y1 - y0
    start, end = ((x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2)) if along_x else (((x0 + x1) / 2, y0), ((x0 + x1) / 2, y1))
    wall = PlanWall(
        start=(round(start[0], 6), round(start[1], 6)),
        end=(round(end[0], 6), round(end[1], 6)),
        thickness=round(y1 - y0 if along_x else x1 - x0, 6),
        color=color,
    )
    if low == 0.0:
        return wall
    door = PlanDoor(at=0.0, width=round(wall.length, 6), height=low)
    return PlanWall(start=wall.start, end=wall.end, thickness=wall.thickness, color=color, doors=(door,))


def _wall_content(wall: PlanWall) -> dict[str, Any]:
    doors = [{"at": door.at, "width": door.width, "height": door.height} for door in wall.doors]
    ends = {"from": list(wall.start), "to": list(wall.end)}
    return _without_empty({**ends, "thickness": wall.thickness, "color": list(wall.color), "doors": doors})


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value not in ("", [])}


def _color(values: np.ndarray) -> Color:
    red, green, blue = map(int, values)
    return red, green, blue
