"""Procedural apartments: a scene from a tier and a seed, and the seeds of each split.

The same tier and seed give the same scene with the same version of NumPy. Splits share no seeds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline.errors import UsageError
from paceline.sims.navigation.config import MIN_DISTANCE
from paceline.sims.navigation.scenes.floorplan import FloorPlan, Room, draw_plan
from paceline.sims.navigation.scenes.free_space import convex_corners
from paceline.sims.navigation.scenes.furniture import KINDS, SIMPLE_KINDS, Solid, furnish
from paceline.sims.navigation.scenes.scene import AGENT_RADIUS, CEILING, Piece, Rect, Scene

SPLITS: dict[str, range] = {
    "train": range(1_000_000),
    "val": range(1_000_000, 1_100_000),
    "test": range(1_100_000, 1_200_000),
}
"""The scene seeds of each split."""

DOOR_ZONE = 0.9
"""The floor within this distance of a door has no furniture."""
LINTELS = (2.0, 2.1)
OUTER_WALL = 0.2


@dataclass(frozen=True, kw_only=True)
class SceneLimits:
    """The size of scenes. A bank pads its tensors to these limits."""

    max_boxes: int
    """Boxes of all kinds."""
    max_walls: int
    """Boxes from the floor to the ceiling, the four outer walls included."""
    max_parts: int
    """All other boxes."""
    max_obstacles: int
    max_nodes: int
    """Corners where shortest paths can bend."""
    radius: float = AGENT_RADIUS
    """Of the agent."""


@dataclass(frozen=True, kw_only=True)
class Tier(SceneLimits):
    """The size of scenes and of their episodes."""

    min_distance: float
    """Least and largest geodesic distance from start to goal."""
    max_distance: float


TIERS: dict[str, Tier] = {
    "small": Tier(
        max_boxes=12,
        max_walls=6,
        max_parts=6,
        max_obstacles=7,
        max_nodes=20,
        min_distance=MIN_DISTANCE,
        max_distance=10.0,
    ),
    "full": Tier(
        max_boxes=96,
        max_walls=40,
        max_parts=64,
        max_obstacles=72,
        max_nodes=160,
        min_distance=MIN_DISTANCE,
        max_distance=30.0,
    ),
}


def tier_named(name: str) -> Tier:
    if name not in TIERS:
        raise UsageError(f"tier {name!r} does not exist; allowed: {', '.join(TIERS)}")
    return TIERS[name]


def scene_seeds(split: str, num_scenes: int, seed: int = 0) -> list[int]:
    """The scene seeds of bank number `seed`. Banks of one size share no scenes until the split is used up."""
    if split not in SPLITS:
        raise UsageError(f"split {split!r} does not exist; allowed: {', '.join(SPLITS)}")
    seeds = SPLITS[split]
    if not 1 <= num_scenes <= len(seeds):
        raise UsageError(f"{num_scenes} scenes of split {split!r} were asked for; allowed: 1 to {len(seeds)}")
    return [seeds[(seed * num_scenes + index) % len(seeds)] for index in range(num_scenes)]


def generate_scene(tier: str, seed: int) -> Scene:
    """The apartment of a seed, within the tier's limits."""
    limits = tier_named(tier)
    rng = np.random.default_rng((list(TIERS).index(tier), seed))
    while True:
        plan = _small_plan(rng) if tier == "small" else _full_plan(rng)
        scene = _build(rng, tier, plan, seed)
        if fits(scene, limits):
            return scene


def fits(scene: Scene, limits: SceneLimits) -> bool:
    """Whether a scene is within limits."""
    num_walls = int(is_wall(scene.boxes).sum())
    return (
        num_walls <= limits.max_walls
        and len(scene.boxes) - num_walls <= limits.max_parts
        and len(scene.obstacles) <= limits.max_obstacles
        and len(convex_corners(scene)) <= limits.max_nodes
    )


def is_wall(boxes: np.ndarray) -> np.ndarray:
    """bool [B]: which boxes reach from the floor to the ceiling."""
    return (boxes[:, 4] <= 0.0) & (boxes[:, 5] >= CEILING)


def _small_plan(rng: np.random.Generator) -> FloorPlan:
    """One room, two rooms with an opening, or two rooms with a door."""
    kind = rng.choice(["one", "open", "door"], p=[0.2, 0.2, 0.6])
    if kind == "one":
        interior = interior_of(rng.uniform(3.2, 5.2), rng.uniform(3.2, 5.2))
        return draw_plan(rng, interior, 1, loop_chance=0.0, open_chance=0.0)
    sides = rng.uniform(4.8, 7.0), rng.uniform(2.8, 4.2)
    interior = interior_of(*(sides if rng.random() < 0.5 else sides[::-1]))
    return draw_plan(rng, interior, 2, loop_chance=0.0, open_chance=1.0 if kind == "open" else 0.0)


def _full_plan(rng: np.random.Generator) -> FloorPlan:
    num_rooms = int(rng.integers(1, 13))
    floor = num_rooms * rng.uniform(10.0, 20.0) + 6.0
    aspect = rng.uniform(1.0, 1.6)
    width, depth = min(20.0, (floor * aspect) ** 0.5), min(15.0, (floor / aspect) ** 0.5)
    if rng.random() < 0.3 and width <= 15.0:
        width, depth = depth, width
    return draw_plan(rng, interior_of(width, depth), num_rooms, loop_chance=0.35, open_chance=0.25)


def interior_of(width: float, depth: float) -> Rect:
    """A rectangle of whole centimetres."""
    return Rect(0.0, 0.0, round(float(width), 2), round(float(depth), 2))


def _build(rng: np.random.Generator, tier: str, plan: FloorPlan, seed: int) -> Scene:
    solids = draw_walls(rng, plan)
    num_structure = len(solids)
    furniture: list[Piece] = []
    for room in rng.permutation(len(plan.rooms)):
        for kind, parts in _furniture(rng, tier, plan, plan.rooms[room], TIERS[tier].max_boxes - len(solids)):
            furniture.append(Piece(kind, tuple(range(len(solids), len(solids) + len(parts)))))
            solids += parts
    boxes = np.array([(*rect, low, high) for rect, low, high in solids])
    return Scene(
        boxes=boxes,
        colors=draw_colors(rng, num_structure, len(solids)),
        interior=plan.interior,
        floor_color=draw_tone(rng, (95, 75, 55), (185, 165, 140)),
        ceiling_color=draw_tone(rng, (215, 215, 210), (245, 245, 240)),
        rooms=tuple(room.area for room in plan.rooms),
        furniture=tuple(furniture),
        seed=seed,
    )


def draw_walls(rng: np.random.Generator, plan: FloorPlan) -> list[Solid]:
    """The outer walls, the inner walls, and the lintels of the doors."""
    solids = [(rect, 0.0, CEILING) for rect in _outer_walls(plan.interior)]
    for wall in plan.walls:
        solids += [(rect, 0.0, CEILING) for rect in wall.solid_parts()]
        solids += [(wall.across(*door), round(float(rng.uniform(*LINTELS)), 2), CEILING) for door in wall.doors]
    return solids


def _outer_walls(interior: Rect) -> list[Rect]:
    x0, y0, x1, y1 = interior.grown(OUTER_WALL)
    inner = interior
    return [
        Rect(x0, y0, inner.x0, y1),
        Rect(inner.x1, y0, x1, y1),
        Rect(inner.x0, y0, inner.x1, inner.y0),
        Rect(inner.x0, inner.y1, inner.x1, y1),
    ]


def _furniture(
    rng: np.random.Generator, tier: str, plan: FloorPlan, room: Room, max_boxes: int
) -> list[tuple[str, list[Solid]]]:
    """See `furnish`."""
    area = room.area
    if room.is_corridor or max_boxes < 1:
        return []
    floor = area.width * area.depth
    if tier == "small":
        kinds, num_pieces = list(SIMPLE_KINDS), int(rng.integers(1, 4 if len(plan.rooms) > 1 else 6))
    else:
        kinds, num_pieces = list(KINDS), int(rng.integers(2, 4 + round(floor / 4.0)))
    return furnish(rng, area, door_zones(plan, area), kinds, num_pieces, max_boxes)


def door_zones(plan: FloorPlan, room: Rect) -> list[Rect]:
    """The floor in front of each door of a room."""
    zones = []
    for wall in plan.walls:
        for start, end in wall.doors:
            opening = wall.across(start - 0.1, end + 0.1)
            grow_x, grow_y = (DOOR_ZONE, 0.0) if wall.axis == 0 else (0.0, DOOR_ZONE)
            zone = Rect(opening.x0 - grow_x, opening.y0 - grow_y, opening.x1 + grow_x, opening.y1 + grow_y)
            if zone.gap(room) < 0:
                zones.append(zone)
    return zones


def draw_colors(rng: np.random.Generator, num_structure: int, num_boxes: int) -> np.ndarray:
    """Shades of one colour for walls, any colours for furniture."""
    wall = np.array(draw_tone(rng, (165, 160, 145), (235, 230, 225)))
    structure = np.clip(wall + rng.integers(-12, 13, (num_structure, 1)), 0, 255)
    furniture = rng.integers(40, 226, (num_boxes - num_structure, 3))
    return np.concatenate([structure, furniture]).astype(np.uint8)


def draw_tone(rng: np.random.Generator, low: tuple[int, ...], high: tuple[int, ...]) -> tuple[int, int, int]:
    """A colour between two others."""
    red, green, blue = (int(rng.integers(a, b + 1)) for a, b in zip(low, high, strict=True))
    return red, green, blue
