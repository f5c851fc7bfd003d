"""Procedural houses: a `House` from a tier and a seed. The seeds of the splits are those of navigation's scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.floorplan import FloorPlan, draw_plan
from paceline.sims.navigation.scenes.furniture import KINDS, Solid, furnish
from paceline.sims.navigation.scenes.generator import (
    SceneLimits,
    door_zones,
    draw_colors,
    draw_tone,
    draw_walls,
    fits,
    interior_of,
)
from paceline.sims.navigation.scenes.scene import Piece, Scene
from paceline.sims.rearrangement.scenes.house import ROBOT_RADIUS, House, Surface
from paceline.sims.rearrangement.scenes.kitchen import ROBOT_GAPS, Color, Kitchen, draw_kitchen
from paceline.sims.rearrangement.scenes.standing import is_usable
from paceline.sims.rearrangement.scenes.surfaces import surfaces_of

KITCHEN_KINDS = ("chest", "block", "shelf", "sofa")
ROOM_KINDS = tuple(kind for kind in KINDS if kind not in ("counter", "pillar"))
LEAST_KITCHEN = 2.9
"""Least side of a kitchen."""
_TABLE_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class HouseLimits(SceneLimits):
    """The size of houses. A bank pads its tensors to these limits."""

    max_surfaces: int


HOUSE_TIERS: dict[str, HouseLimits] = {
    "small": HouseLimits(
        max_boxes=28, max_walls=4, max_parts=24, max_obstacles=12, max_nodes=20, radius=ROBOT_RADIUS, max_surfaces=14
    ),
    "full": HouseLimits(
        max_boxes=84, max_walls=20, max_parts=64, max_obstacles=48, max_nodes=80, radius=ROBOT_RADIUS, max_surfaces=32
    ),
}


def house_tier(name: str) -> HouseLimits:
    if name not in HOUSE_TIERS:
        raise UsageError(f"tier {name!r} does not exist; allowed: {', '.join(HOUSE_TIERS)}")
    return HOUSE_TIERS[name]


def generate_house(tier: str, seed: int) -> House:
    """The house of a seed, within the tier's limits."""
    limits = house_tier(tier)
    rng = np.random.default_rng((17, list(HOUSE_TIERS).index(tier), seed))
    while True:
        plan = _small_plan(rng) if tier == "small" else _full_plan(rng)
        house = _build(rng, plan, limits, seed)
        if house is not None and _fits(house, limits) and is_usable(house):
            return house


def _fits(house: House, limits: HouseLimits) -> bool:
    return fits(house.scene, limits) and len(house.surfaces) <= limits.max_surfaces


def _small_plan(rng: np.random.Generator) -> FloorPlan:
    sides = rng.uniform(3.6, 4.6), rng.uniform(4.4, 5.6)
    interior = interior_of(*(sides if rng.random() < 0.5 else sides[::-1]))
    return draw_plan(rng, interior, 1, loop_chance=0.0, open_chance=0.0)


def _full_plan(rng: np.random.Generator) -> FloorPlan:
    num_rooms = int(rng.integers(2, 7))
    floor, aspect = num_rooms * rng.uniform(12.0, 20.0) + 6.0, rng.uniform(1.0, 1.6)
    sides = (floor * aspect) ** 0.5, (floor / aspect) ** 0.5
    interior = interior_of(*(sides if rng.random() < 0.5 else sides[::-1]))
    return draw_plan(rng, interior, num_rooms, loop_chance=0.35, open_chance=0.25)


class _Furniture:
    """Collects the boxes of a house."""

    def __init__(self) -> None:
        self.solids: list[Solid] = []
        self.colors: list[Color | None] = []
        self.pieces: list[Piece] = []
        self.surfaces: list[Surface] = []

    def add(self, kind: str, solids: Sequence[Solid], colors: Sequence[Color | None]) -> None:
        start = len(self.solids)
        self.pieces.append(Piece(kind, tuple(range(start, start + len(solids)))))
        self.solids += solids
        self.colors += colors


def _build(rng: np.random.Generator, plan: FloorPlan, limits: HouseLimits, seed: int) -> House | None:
    """None if no room has space for a kitchen."""
    walls = draw_walls(rng, plan)
    found = _draw_kitchen(rng, plan)
    if found is None:
        return None
    number, kitchen, table = found
    furniture = _Furniture()
    for kind, solids, tones in kitchen.pieces():
        furniture.add(kind, solids, tones)
    furniture.surfaces += kitchen.surfaces()
    _add(furniture, [("table", table)])
    area, doors = plan.rooms[number].area, door_zones(plan, plan.rooms[number].area)
    most = limits.max_boxes - len(walls)
    others = [*kitchen.footprints, table[0][0]]
    num_pieces = int(rng.integers(1, 3 + round(area.width * area.depth / 12.0)))
    free = [*kitchen.keep_free, *doors]
    _add(
        furniture,
        furnish(
            rng, area, free, KITCHEN_KINDS, num_pieces, most - len(furniture.solids), gaps=ROBOT_GAPS, others=others
        ),
    )
    for room in rng.permutation(len(plan.rooms)):
        area = plan.rooms[room].area
        if room == number or plan.rooms[room].is_corridor:
            continue
        num_pieces = int(rng.integers(4, 7 + round(area.width * area.depth / 3.0)))
        left = most - len(furniture.solids)
        _add(furniture, furnish(rng, area, door_zones(plan, area), ROOM_KINDS, num_pieces, left, gaps=ROBOT_GAPS))
    return _house(rng, plan, walls, furniture, kitchen, seed)


def _draw_kitchen(rng: np.random.Generator, plan: FloorPlan) -> tuple[int, Kitchen, list[Solid]] | None:
    """The number of a room, and its kitchen and table."""
    for number in rng.permutation(len(plan.rooms)):
        area = plan.rooms[number].area
        if plan.rooms[number].is_corridor or min(area.width, area.depth) < LEAST_KITCHEN:
            continue
        doors = door_zones(plan, area)
        kitchen = draw_kitchen(rng, area, doors)
        if kitchen is None:
            continue
        free = [*kitchen.keep_free, *doors]
        for _ in range(_TABLE_ATTEMPTS):
            tables = furnish(rng, area, free, ["table"], 1, 2, gaps=ROBOT_GAPS, others=kitchen.footprints)
            if tables:
                return int(number), kitchen, tables[0][1]
    return None


def _add(furniture: _Furniture, pieces: Sequence[tuple[str, list[Solid]]]) -> None:
    for kind, solids in pieces:
        furniture.add(kind, solids, [None] * len(solids))
        furniture.surfaces += surfaces_of(kind, solids)


def _house(
    rng: np.random.Generator,
    plan: FloorPlan,
    walls: list[Solid],
    furniture: _Furniture,
    kitchen: Kitchen,
    seed: int,
) -> House:
    solids = [*walls, *furniture.solids]
    colors = draw_colors(rng, len(walls), len(solids))
    for index, color in enumerate(furniture.colors, len(walls)):
        if color is not None:
            colors[index] = color
    scene = Scene(
        boxes=np.array([(*rect, low, high) for rect, low, high in solids]),
        colors=colors,
        interior=plan.interior,
        floor_color=draw_tone(rng, (95, 75, 55), (185, 165, 140)),
        ceiling_color=draw_tone(rng, (215, 215, 210), (245, 245, 240)),
        rooms=tuple(room.area for room in plan.rooms),
        furniture=tuple(Piece(kind, tuple(len(walls) + box for box in boxes)) for kind, boxes in furniture.pieces),
        radius=ROBOT_RADIUS,
        seed=seed,
    )
    moving = [*kitchen.fridge.moving, *kitchen.cabinet.moving]
    joints = {**kitchen.fridge.joints, **kitchen.cabinet.joints}
    handles = {joint: box[:3] for joint, box, _ in moving}  # the last box of a joint is its handle
    return House(
        scene=scene,
        joints=np.array([joints[joint] for joint in sorted(joints)]),
        moving=np.array([box for _, box, _ in moving]),
        moving_joint=np.array([joint for joint, _, _ in moving]),
        moving_colors=np.array([color for _, _, color in moving], np.uint8),
        handles=np.array([handles[joint] for joint in sorted(handles)]),
        surfaces=tuple(furniture.surfaces),
    )
