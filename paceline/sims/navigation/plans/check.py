"""What is wrong with a plan: doors, boxes outside, gaps as wide as the agent, unreachable floor, and limits of banks.

The agent is a disc, but obstacles are grown by its radius as rectangles (see `free_space`). So all tests are exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import UsageError
from paceline.sims.navigation.plans.plan import Plan
from paceline.sims.navigation.plans.reading import Problem, read_plan
from paceline.sims.navigation.scenes.cells import Cells
from paceline.sims.navigation.scenes.free_space import convex_corners
from paceline.sims.navigation.scenes.furniture import CATEGORIES
from paceline.sims.navigation.scenes.generator import TIERS, Tier, is_wall
from paceline.sims.navigation.scenes.scene import AGENT_HEIGHT, AGENT_RADIUS, Rect, Scene

DOUBTFUL = 0.005
"""A gap as wide as the agent within this length is refused: rounding would decide whether the agent can pass."""
LARGEST_TIER = "full"
_TOUCH = 1e-6
_BORDER = 9.0
"""Thickness of the rectangles that stand for the outer walls."""


@dataclass(frozen=True)
class CheckedPlan:
    """A plan, its scene, and its problems. Plan and scene are None if the file cannot be read."""

    plan: Plan | None
    scene: Scene | None
    problems: list[Problem]


def check_file(file: Path) -> CheckedPlan:
    plan, problems = read_plan(file)
    if plan is None:
        return CheckedPlan(None, None, problems)
    scene = plan.scene()
    return CheckedPlan(plan, scene, [*check_plan(plan, scene)])


def sound_scene(file: Path) -> Scene:
    """The scene of a plan without problems."""
    checked = check_file(file)
    if checked.scene is None or checked.problems:
        others = len(checked.problems) - 1
        rest = f" (and {others} more: `paceline plan check {file}`)" if others else ""
        raise UsageError(f"floor plan {str(file)!r}: {checked.problems[0]}{rest}")
    return checked.scene


def check_plan(plan: Plan, scene: Scene) -> Iterator[Problem]:
    yield from _outside(plan)
    yield from _doors(plan)
    yield from _doubtful_gaps(plan)
    yield from _unreachable(scene)
    yield from _too_many(scene)


def free_cells(scene: Scene) -> Cells:
    """The places of the agent's centre."""
    return Cells.of(scene.interior.grown(-scene.radius), _grown(scene.obstacles, scene.radius))


def free_area(scene: Scene) -> float:
    """The area of the places of the agent's centre, in square metres."""
    cells = free_cells(scene)
    return float(np.diff(cells.xs) @ cells.free @ np.diff(cells.ys))


def fitting_tier(scene: Scene) -> str | None:
    """The first tier whose limits hold the scene. None if no tier does."""
    return next((name for name, tier in TIERS.items() if not _over_limits(scene, tier)), None)


def _outside(plan: Plan) -> Iterator[Problem]:
    floor = plan.interior.grown(_TOUCH)
    boxes = {f"walls[{at}]": wall.between(0.0, wall.length) for at, wall in enumerate(plan.walls)}
    boxes |= {f"furniture[{at}]": box.area for at, box in enumerate(plan.furniture)}
    boxes |= {f"rooms[{at}]": room.area for at, room in enumerate(plan.rooms)}
    for path, area in boxes.items():
        if not floor.contains(area):
            text = f"its area [{_edges(area)}] is not within the outer walls; allowed: within [{_edges(plan.interior)}]"
            yield Problem(path, text, (area,))


def _doors(plan: Plan) -> Iterator[Problem]:
    openings: list[tuple[str, Rect]] = []
    for at, wall in enumerate(plan.walls):
        for number, door in enumerate(wall.doors):
            path, area = f"walls[{at}].doors[{number}]", wall.opening(door)
            mark = (area or wall.between(0.0, wall.length),)
            problem = _door_problem(door.at, door.width, wall.length)
            if problem is not None:
                yield Problem(path, problem, mark)
            if area is not None:
                openings.append((path, area))
    for (first, one), (second, other) in itertools.combinations(openings, 2):
        if one.gap(other) < -_TOUCH:
            text = f"the door overlaps the door {first}; allowed: doors that do not overlap"
            yield Problem(second, text, (_shared(one, other),))
    yield from _blocked_doors(plan, openings)


def _door_problem(at: float, width: float, length: float) -> str | None:
    """What is wrong with a door in a wall of this length, by itself."""
    if width > length + _TOUCH:
        return f"the door is {width:g} m wide; allowed: up to {length:g} m, the length of its wall"
    if at < -_TOUCH or at + width > length + _TOUCH:
        text = f"the door from {at:g} to {at + width:g} m is not in its wall, which is {length:g} m long"
        return f"{text}; allowed for this width: at from 0 to {length - width:g}"
    if width <= 2 * AGENT_RADIUS:
        return f"the door is {width:g} m wide; allowed: more than {2 * AGENT_RADIUS:g} m, the width of the agent"
    return None


def _blocked_doors(plan: Plan, openings: Sequence[tuple[str, Rect]]) -> Iterator[Problem]:
    for path, rect in _obstacles(plan):
        for door, opening in openings:
            if rect.gap(opening) < -_TOUCH:
                text = f"it stands in the door {door}; allowed: outside of [{_edges(opening)}]"
                yield Problem(path, text, (_shared(rect, opening),))


def _doubtful_gaps(plan: Plan) -> Iterator[Problem]:
    """Gaps as wide as the agent, between obstacles or outer walls, that nothing else closes."""
    x0, y0, x1, y1 = plan.interior
    wide = plan.interior.grown(_BORDER)
    outer = [wide._replace(x1=x0), wide._replace(x0=x1), wide._replace(y1=y0), wide._replace(y0=y1)]
    names = (f"the outer wall at {side}" for side in ("low x", "high x", "low y", "high y"))
    rects = [*zip(names, outer, strict=True), *_obstacles(plan)]
    for (first, one), (second, other) in itertools.combinations(rects, 2):
        gap = one.gap(other)
        if abs(gap - 2 * AGENT_RADIUS) >= DOUBTFUL:
            continue
        reach = AGENT_RADIUS + DOUBTFUL
        strip = _shared(one.grown(reach), other.grown(reach))
        cells = Cells.of(strip, [r.grown(AGENT_RADIUS - DOUBTFUL) for _, r in rects if r not in (one, other)])
        if cells.free.any():
            text = f"a gap of {gap:.3f} m to {first} is as wide as the agent ({2 * AGENT_RADIUS:g} m)"
            allowed = f"narrower or wider by {DOUBTFUL:g} m or more"
            yield Problem(second, f"{text}; allowed: {allowed}", (cells.rect(cells.parts()[0][0]),))


def _obstacles(plan: Plan) -> list[tuple[str, Rect]]:
    """The footprints that block the agent, with the paths of their walls and furniture."""
    found = [
        (f"walls[{at}]", rect)
        for at, wall in enumerate(plan.walls)
        for rect, low, _ in wall.solids()
        if low < AGENT_HEIGHT
    ]
    boxes = enumerate(plan.furniture)
    return found + [(f"furniture[{at}]", box.area) for at, box in boxes if box.heights[0] < AGENT_HEIGHT]


def _unreachable(scene: Scene) -> Iterator[Problem]:
    cells = free_cells(scene)
    parts = sorted(([cells.rect(cell) for cell in part] for part in cells.parts()), key=_area, reverse=True)
    if not parts:
        width = f"{2 * AGENT_RADIUS:g} m"
        yield Problem(
            "", f"there is no free floor for the agent, which is {width} wide; allowed: fewer or smaller boxes"
        )
    for part in parts[1:]:
        part.sort(key=lambda rect: -rect.width * rect.depth)
        text = f"{_area(part):.3g} m² of free floor cannot be reached from the largest part"
        yield Problem("", f"{text}; allowed: a door to it, or a box that fills it", tuple(part))


def _too_many(scene: Scene) -> Iterator[Problem]:
    for name, count, most in _over_limits(scene, TIERS[LARGEST_TIER]):
        yield Problem("", f"the plan has {count} {name}; allowed: {most} or fewer")


def _over_limits(scene: Scene, tier: Tier) -> list[tuple[str, int, int]]:
    num_walls = int(is_wall(scene.boxes).sum())
    num_pieces = sum(piece.kind in CATEGORIES for piece in scene.furniture)
    counts = (
        ("boxes from the floor to the ceiling (four of them outer walls)", num_walls, tier.max_walls),
        ("other boxes, which are furniture and walls above doors", len(scene.boxes) - num_walls, tier.max_parts),
        ("pieces of furniture that objectnav looks for", num_pieces, tier.max_parts),
        ("obstacles", len(scene.obstacles), tier.max_obstacles),
        ("corners where shortest paths can bend", len(convex_corners(scene)), tier.max_nodes),
    )
    return [(name, count, most) for name, count, most in counts if count > most]


def _edges(rect: Rect) -> str:
    return ", ".join(f"{edge:g}" for edge in rect)


def _grown(rows: np.ndarray, margin: float) -> list[Rect]:
    return [Rect(*row).grown(margin) for row in rows.tolist()]


def _shared(one: Rect, other: Rect) -> Rect:
    return Rect(max(one.x0, other.x0), max(one.y0, other.y0), min(one.x1, other.x1), min(one.y1, other.y1))


def _area(part: Sequence[Rect]) -> float:
    return sum(rect.width * rect.depth for rect in part)
