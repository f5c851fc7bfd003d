"""Plans from JSON files. Every problem of a file is found, with the JSON path of the value, not only the first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import UsageError, closest
from paceline.sims.navigation.plans.plan import (
    CEILING_COLOR,
    DOOR_HEIGHT,
    FLOOR_COLOR,
    FURNITURE_COLOR,
    OUTER_THICKNESS,
    VERSION,
    WALL_COLOR,
    WALL_THICKNESS,
    Color,
    Plan,
    PlanBox,
    PlanDoor,
    PlanRoom,
    PlanWall,
    Point,
)
from paceline.sims.navigation.scenes.furniture import KINDS
from paceline.sims.navigation.scenes.scene import AGENT_HEIGHT, CEILING, Rect

SIZES = (0.5, 100.0)
"""Least and largest side of a floor in metres."""
FILE_SUFFIX = ".json"
_THIN = 0.01
"""Least thickness, width and depth in metres."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a plan, and where."""

    path: str
    """The JSON path of the value; empty for the whole file."""
    message: str
    areas: tuple[Rect, ...] = ()
    """Where it is on the floor, for pictures. Its first area's middle is the place that the message names."""

    def __str__(self) -> str:
        place = ""
        if self.areas:
            area = self.areas[0]
            place = f"({(area.x0 + area.x1) / 2:.2f}, {(area.y0 + area.y1) / 2:.2f})"
        where = " at ".join(part for part in (self.path, place) if part)
        return f"{where}: {self.message}" if where else self.message


def plan_files(path: str | Path) -> list[Path]:
    """The file itself, or the .json files of a folder by name, without hidden ones."""
    path = Path(path)
    if os.path.isfile(path):  # False for a name that is too long, too
        return [path]
    if not os.path.isdir(path):
        raise UsageError(f"there is no floor plan {str(path.absolute())!r}; allowed: a .json file, or a folder of them")
    files = sorted(
        file for file in path.glob("*") if file.suffix.lower() == FILE_SUFFIX and not file.name.startswith(".")
    )
    if not files:
        raise UsageError(f"the folder {str(path)!r} has no {FILE_SUFFIX} files; allowed: a folder with floor plans")
    return files


def read_plan(path: Path) -> tuple[Plan | None, list[Problem]]:
    """The plan of a file, or None and the problems of its content."""
    try:
        content = json.loads(path.read_text("utf-8-sig"), object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        return None, [Problem("", f"no valid JSON: line {error.lineno}, column {error.colno}: {error.msg}")]
    except (OSError, UsageError, ValueError, RecursionError) as error:
        return None, [Problem("", f"the file cannot be read: {error}")]
    return parse_plan(content)


def parse_plan(content: Any) -> tuple[Plan | None, list[Problem]]:
    """The plan of a file's content, or None and its problems."""
    problems: list[Problem] = []
    plan = _plan(_Object(content, "", problems))
    return (None, problems) if problems else (plan, problems)


class _Object:
    """One JSON object. Each read notes what is wrong with the value, and then returns a valid default in its place."""

    def __init__(self, value: Any, path: str, problems: list[Problem]) -> None:
        self._path, self._problems = path, problems
        self._is_object = isinstance(value, dict)
        self._values: dict[str, Any] = value if self._is_object else {}
        if not self._is_object:
            self._note(path, value, "an object {...}")

    def allow(self, *names: str, needed: Iterable[str] = ()) -> None:
        """Note unknown and missing fields."""
        for name in self._values:
            if name not in names:
                allowed = f"there is no such field{closest(name, names)}; allowed: {', '.join(names)}"
                self._problems.append(Problem(self._at(name), allowed))
        needed = list(needed)
        for name in needed:
            if self._is_object and name not in self._values:
                self._problems.append(Problem(self._at(name), f"the field is missing; needed: {', '.join(needed)}"))

    def number(self, name: str, default: float, least: float, most: float) -> float:
        value = self._values.get(name, default)
        if _is_number(value) and least <= value <= most:
            return float(value)
        self._note(self._at(name), value, f"a number from {least:g} to {most:g}")
        return default

    def numbers(self, name: str, default: tuple[float, ...], least: float = -SIZES[1]) -> tuple[float, ...]:
        """As many numbers as `default` has."""
        value = self._values.get(name, default)
        is_list = isinstance(value, list | tuple) and len(value) == len(default)
        if is_list and all(_is_number(one) and one >= least for one in value):
            return tuple(map(float, value))
        self._note(self._at(name), value, f"a list of {len(default)} numbers from {least:g} to {SIZES[1]:g}")
        return default

    def point(self, name: str, default: Point, least: float = -SIZES[1]) -> Point:
        x, y = self.numbers(name, default, least)
        return x, y

    def rect(self, name: str) -> Rect:
        x0, y0, x1, y1 = self.numbers(name, (0.0, 0.0, 1.0, 1.0))
        if x1 - x0 >= _THIN and y1 - y0 >= _THIN:
            return Rect(x0, y0, x1, y1)
        allowed = f"[x0, y0, x1, y1], where x1 - x0 and y1 - y0 are {_THIN:g} or more"
        self._note(self._at(name), self._values.get(name), allowed)
        return Rect(0.0, 0.0, 1.0, 1.0)

    def color(self, name: str, default: Color) -> Color:
        value = self._values.get(name, default)
        if _is_color(value):
            return value[0], value[1], value[2]
        self._note(self._at(name), value, "red, green and blue as whole numbers from 0 to 255")
        return default

    def text(self, name: str, allowed: Iterable[str] | None = None) -> str:
        value, allowed = self._values.get(name, ""), None if allowed is None else list(allowed)
        if isinstance(value, str) and value.isprintable() and (allowed is None or value in ("", *allowed)):
            return value
        words = (
            "a text of printable characters" if allowed is None else ", ".join(allowed) + closest(str(value), allowed)
        )
        self._note(self._at(name), value, words)
        return ""

    def whole(self, name: str, allowed: int) -> None:
        value = self._values.get(name, allowed)
        if type(value) is not int or value != allowed:
            self._note(self._at(name), value, str(allowed))

    def object(self, name: str) -> _Object:
        return _Object(self._values.get(name, {}), self._at(name), self._problems)

    def objects(self, name: str) -> Iterator[_Object]:
        value = self._values.get(name, [])
        if not isinstance(value, list):
            self._note(self._at(name), value, "a list [...]")
            return
        for index, one in enumerate(value):
            yield _Object(one, f"{self._at(name)}[{index}]", self._problems)

    def colors(self, name: str, default: Color) -> tuple[Color, Color, Color, Color]:
        """One colour for four things, or four."""
        value = self._values.get(name, default)
        if isinstance(value, list | tuple) and len(value) == 4 and all(map(_is_color, value)):
            first, second, third, fourth = ((one[0], one[1], one[2]) for one in value)
            return first, second, third, fourth
        return (self.color(name, default),) * 4

    def refuse(self, name: str, message: str, areas: tuple[Rect, ...] = ()) -> None:
        self._problems.append(Problem(self._at(name), message, areas))

    def _at(self, name: str) -> str:
        name = name if name.isprintable() else json.dumps(name)
        return f"{self._path}.{name}" if self._path else name

    def _note(self, path: str, value: Any, allowed: str) -> None:
        text = json.dumps(value, default=str)
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        self._problems.append(Problem(path, f"{shown} is not allowed; allowed: {allowed}"))


def _plan(of: _Object) -> Plan:
    of.allow(
        *("version", "size", "outer_walls", "walls", "furniture", "rooms", "floor_color", "ceiling_color"),
        needed=("version", "size"),
    )
    of.whole("version", VERSION)
    size = of.point("size", (1.0, 1.0), SIZES[0])
    outer = of.object("outer_walls")
    outer.allow("thickness", "color")
    return Plan(
        size=size,
        outer_thickness=outer.number("thickness", OUTER_THICKNESS, _THIN, SIZES[1]),
        outer_colors=outer.colors("color", WALL_COLOR),
        walls=tuple(map(_wall, of.objects("walls"))),
        furniture=tuple(map(_box, of.objects("furniture"))),
        rooms=tuple(map(_room, of.objects("rooms"))),
        floor_color=of.color("floor_color", FLOOR_COLOR),
        ceiling_color=of.color("ceiling_color", CEILING_COLOR),
    )


def _wall(of: _Object) -> PlanWall:
    of.allow("from", "to", "thickness", "color", "doors", needed=("from", "to"))
    start, end = of.point("from", (0.0, 0.0)), of.point("to", (0.0, 1.0))
    if (start[0] == end[0]) == (start[1] == end[1]):
        problem = "has no length" if start == end else "is parallel to no axis"
        allowed = "ends that differ in x or in y, and not in both"
        of.refuse("to", f"the wall from {list(start)} to {list(end)} {problem}; allowed: {allowed}")
        start, end = (0.0, 0.0), (0.0, 1.0)
    return PlanWall(
        start=start,
        end=end,
        thickness=of.number("thickness", WALL_THICKNESS, _THIN, SIZES[1]),
        color=of.color("color", WALL_COLOR),
        doors=tuple(map(_door, of.objects("doors"))),
    )


def _door(of: _Object) -> PlanDoor:
    of.allow("at", "width", "height", needed=("at", "width"))
    return PlanDoor(
        at=of.number("at", 0.0, -SIZES[1], SIZES[1]),
        width=of.number("width", 1.0, _THIN, SIZES[1]),
        height=of.number("height", DOOR_HEIGHT, AGENT_HEIGHT, CEILING),
    )


def _box(of: _Object) -> PlanBox:
    of.allow("category", "area", "heights", "color", needed=("area", "heights"))
    low, high = of.numbers("heights", (0.0, 1.0))
    if not 0.0 <= low < high <= CEILING:
        of.refuse("heights", f"{[low, high]} is not allowed; allowed: [low, high] with 0 <= low < high <= {CEILING:g}")
    return PlanBox(
        area=of.rect("area"),
        heights=(low, high),
        category=of.text("category", KINDS),
        color=of.color("color", FURNITURE_COLOR),
    )


def _room(of: _Object) -> PlanRoom:
    of.allow("name", "area", needed=("area",))
    return PlanRoom(area=of.rect("area"), name=of.text("name"))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= SIZES[1]


def _is_color(value: Any) -> bool:
    is_triple = isinstance(value, list | tuple) and len(value) == 3
    return is_triple and all(type(one) is int and 0 <= one <= 255 for one in value)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"an object has the field {twice!r} twice; allowed: once")
    return values
