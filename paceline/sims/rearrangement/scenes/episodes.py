"""Episodes of a house: objects on surfaces, goals for the first of them, and starts of the base.

Everything is drawn for all episodes of a house at once, by rejection.

Legend: E episodes, O objects, T objects with goals, P starts, S surfaces, J joints, V nodes, A attempts, B boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.scenes.geodesic import Graph
from paceline.sims.navigation.scenes.geometry import NOWHERE, boxed, is_blocked
from paceline.sims.rearrangement.objects import OBJECT_KINDS
from paceline.sims.rearrangement.scenes.house import FRIDGE, IN_THE_OPEN, House
from paceline.sims.rearrangement.scenes.standing import (
    DRAWER_REACH,
    NEAREST,
    REACH,
    all_swept_boxes,
    blocking,
    draw_joint_starts,
    facing,
    is_hidden,
    is_outside_sweeps,
    shift_of,
    stands_of,
)

NUM_EPISODES = 32
NUM_OBJECTS = 10
NUM_TARGETS = 5
"""Objects with goals."""
NUM_STARTS = 4
EDGE = 0.02
"""Least distance of an object from the edge of its surface."""
APART = 0.01
"""Least distance between two objects."""
START_DISTANCES = (0.6, 2.0)
"""Distances of starts from the object or goal that they are for."""
LEAST_MOVE = 0.5
"""Least distance from an object to its goal."""
_ATTEMPTS, _ROUNDS, _BATCHES = 12, 12, 20
_BATCH = 40
"""Episodes that are drawn at once. Those without space for all objects and goals are left out."""
_LIKELY = 60
"""Surfaces with this many stands, or more, are equally likely."""
_START_ATTEMPTS = 32


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Where objects begin and end. The other objects lie in the open."""

    num_targets: int
    """Objects that the task is about, the first ones."""
    starts: tuple[tuple[str, ...], ...] = ()
    """The kinds of surfaces where each of the first objects begins; () for any in the open."""
    goals: tuple[tuple[str, ...], ...] = ()
    """The same for their goals."""
    kinds: tuple[str, ...] = ()
    """The kinds of the first objects; any kinds without."""


_LAID, _FRIDGE = ("counter", "table"), ("fridge",)
SCENARIOS: dict[str, Scenario] = {
    "tidy_house": Scenario(num_targets=5),
    "prepare_groceries": Scenario(num_targets=3, starts=(_FRIDGE, _FRIDGE, _LAID), goals=(_LAID, _LAID, _FRIDGE)),
    "set_table": Scenario(
        num_targets=2, starts=(("drawer",), _FRIDGE), goals=(("table",), ("table",)), kinds=("bowl", "apple")
    ),
}


def scenario_named(name: str) -> Scenario:
    if name not in SCENARIOS:
        raise UsageError(f"scenario {name!r} does not exist; allowed: {', '.join(SCENARIOS)}")
    return SCENARIOS[name]


@dataclass(frozen=True, kw_only=True)
class HouseEpisodes:
    """The episodes of one house. Poses are x, y and heading."""

    object_kinds: np.ndarray
    """int64 [E, O]: numbers in `OBJECT_KINDS`, different within an episode."""
    objects: np.ndarray
    """[E, O, 4]: x, y and z of the centre, and yaw, while everything is closed."""
    object_joint: np.ndarray
    """int64 [E, O]: the joint of the surface that the object lies on; -1 in the open."""
    goals: np.ndarray
    """[E, T, 3]: the centre of the object at its goal, free for every yaw."""
    object_starts: np.ndarray
    """[E, T, P, 3]: starts that face the object, with a straight way to its stand."""
    goal_starts: np.ndarray
    """[E, T, P, 3]: the same for goals."""
    joint_starts: np.ndarray
    """[J, P, 3]: starts that face the handle, outside the area that the joint sweeps."""
    far_starts: np.ndarray
    """[E, P, 3]: starts anywhere."""
    stands: np.ndarray
    """[E, 2T, 3]: the nearest stand of each object, then of each goal.

    The stand of an object in a drawer is the one before the open drawer.
    """
    stand_distances: np.ndarray
    """[E * 2T, V]: distance of every node from every stand."""


def draw_house_episodes(house: House, graph: Graph, scenario: str) -> HouseEpisodes:
    """`NUM_EPISODES` episodes, the same for the same house and scenario."""
    rules = scenario_named(scenario)
    rng = np.random.default_rng((19, list(SCENARIOS).index(scenario), house.scene.seed + 1, len(house.scene.boxes)))
    shelves = _Shelves(house)
    kinds, placed = _draw_places(rng, shelves, rules)
    about = [*range(NUM_TARGETS), *range(NUM_OBJECTS, NUM_OBJECTS + NUM_TARGETS)]
    points = (placed.places[..., :2] + shelves.shifts[placed.surfaces])[:, about]
    stands = facing(placed.stands[:, about], points)
    starts = _draw_starts(rng, house, points.reshape(-1, 2), stands.reshape(-1, 3))
    starts = starts.reshape(NUM_EPISODES, 2, NUM_TARGETS, NUM_STARTS, 3)
    joint_starts = draw_joint_starts(rng, house, NUM_STARTS)
    if joint_starts is None:
        raise UsageError("a handle of the house has no free floor in front of it; allowed: 1.3 m of it")
    return HouseEpisodes(
        object_kinds=kinds,
        objects=np.concatenate([placed.places, placed.yaws[..., None]], 2)[:, :NUM_OBJECTS],
        object_joint=shelves.joints[placed.surfaces[:, :NUM_OBJECTS]],
        goals=placed.places[:, NUM_OBJECTS:],
        object_starts=starts[:, 0],
        goal_starts=starts[:, 1],
        joint_starts=joint_starts,
        far_starts=_draw_far_starts(rng, house),
        stands=stands,
        stand_distances=graph.to_goals(stands[..., :2].reshape(-1, 2)).T,
    )


class _Shelves:
    """The surfaces of a house as arrays."""

    def __init__(self, house: House) -> None:
        surfaces = house.surfaces
        self.seed = house.scene.seed
        self.kinds = np.array([surface.kind for surface in surfaces])
        self.joints = np.array([surface.joint for surface in surfaces])
        self.shifts = np.stack([shift_of(house, surface) for surface in surfaces])
        """[S, 2]: how far each moves when its drawer opens."""
        self.low, self.high = (np.array([surface.area[at : at + 2] for surface in surfaces]) for at in (0, 2))
        self.z = np.array([surface.z for surface in surfaces])
        self.reach = np.where(self.joints > FRIDGE, DRAWER_REACH, REACH)
        stands = [stands_of(house, surface) for surface in surfaces]
        self.num_stands = np.array([len(places) for places in stands])
        self.stands = np.full((len(surfaces), self.num_stands.max(), 2), NOWHERE[0])
        """[S, most stands, 2], padded."""
        for row, places in zip(self.stands, stands, strict=True):
            row[: len(places)] = places
        self.blocking = np.stack([blocking(house, surface) for surface in surfaces])
        """[S, B, 4]: see `blocking`."""


class _Placed(NamedTuple):
    """Objects and goals of N episodes."""

    places: np.ndarray
    """[N, objects, 3]: of the centre."""
    yaws: np.ndarray
    halves: np.ndarray
    """[N, objects, 2]: half extents of the axis-aligned bounding rectangles."""
    surfaces: np.ndarray
    stands: np.ndarray
    """[N, objects, 2]."""

    @classmethod
    def empty(cls, num: int) -> _Placed:
        count = NUM_OBJECTS + NUM_TARGETS
        places, yaws, halves = (np.zeros((num, count, size)) for size in (3, 1, 2))
        return cls(places, yaws[..., 0], halves, np.full((num, count), -1), np.zeros((num, count, 2)))


def _draw_places(rng: np.random.Generator, shelves: _Shelves, rules: Scenario) -> tuple[np.ndarray, _Placed]:
    """The kinds [E, O] and the places of objects and goals."""
    batches = []
    for _ in range(_BATCHES):
        kinds = _draw_kinds(rng, rules)
        placed, complete = _draw_batch(rng, shelves, rules, kinds)
        batches.append((kinds[complete], *(values[complete] for values in placed)))
        if sum(len(batch[0]) for batch in batches) >= NUM_EPISODES:
            kinds, *values = (np.concatenate(parts)[:NUM_EPISODES] for parts in zip(*batches, strict=True))
            return kinds, _Placed(*values)
    raise UsageError(f"the objects find no space in the house of seed {shelves.seed}; allowed: more free surfaces")


def _draw_kinds(rng: np.random.Generator, rules: Scenario) -> np.ndarray:
    names = [kind.name for kind in OBJECT_KINDS]
    first = [names.index(name) for name in rules.kinds]
    others = [number for number in range(len(names)) if number not in first]
    rows = [[*first, *rng.permutation(others)][:NUM_OBJECTS] for _ in range(_BATCH)]
    return np.array(rows, np.int64)


def _draw_batch(
    rng: np.random.Generator, shelves: _Shelves, rules: Scenario, kinds: np.ndarray
) -> tuple[_Placed, np.ndarray]:
    """Places of one object after the other in many episodes, and which episodes have space for all."""
    placed = _Placed.empty(len(kinds))
    complete = np.ones(len(kinds), bool)
    extents = np.array([kind.half_extents for kind in OBJECT_KINDS])[kinds]
    placed.yaws[:, :NUM_OBJECTS] = rng.uniform(-np.pi, np.pi, kinds.shape)
    cos, sin = np.abs(np.cos(placed.yaws[:, :NUM_OBJECTS])), np.abs(np.sin(placed.yaws[:, :NUM_OBJECTS]))
    placed.halves[:, :NUM_OBJECTS, 0] = cos * extents[..., 0] + sin * extents[..., 1]
    placed.halves[:, :NUM_OBJECTS, 1] = sin * extents[..., 0] + cos * extents[..., 1]
    # A goal is free for every yaw.
    placed.halves[:, NUM_OBJECTS:] = np.linalg.norm(extents[:, :NUM_TARGETS, :2], axis=2)[..., None]
    for number in range(NUM_OBJECTS + NUM_TARGETS):
        is_goal = number >= NUM_OBJECTS
        kind = number - NUM_OBJECTS if is_goal else number
        wanted = (rules.goals if is_goal else rules.starts)[kind : kind + 1]
        rows = np.flatnonzero(complete)
        for _ in range(_ROUNDS):
            rows = rows[~_try(rng, shelves, placed, rows, number, wanted[0] if wanted else ())]
            if not len(rows):
                break
        complete[rows] = False
        placed.places[:, number, 2] = shelves.z[placed.surfaces[:, number]] + extents[:, kind, 2]
    return placed, complete


def _try(
    rng: np.random.Generator,
    shelves: _Shelves,
    placed: _Placed,
    rows: np.ndarray,
    number: int,
    kinds: Sequence[str],
) -> np.ndarray:
    """Look for a place of object `number` in the episodes `rows`, and note those found; returns where one was found.

    It is on a surface of one of `kinds`, by default in the open.
    """
    shape, halves = (len(rows), _ATTEMPTS), placed.halves[rows, number][:, None]
    wanted = np.isin(shelves.kinds, list(kinds)) if kinds else shelves.joints == IN_THE_OPEN
    chances = np.minimum(shelves.num_stands, _LIKELY) * wanted
    surfaces = rng.choice(len(chances), shape, p=chances / chances.sum())
    low = shelves.low[surfaces] + halves + EDGE
    room = shelves.high[surfaces] - halves - EDGE - low
    places = low + rng.random((*shape, 2)) * room
    valid = (room > 0).all(2)
    distance = np.abs(places[:, :, None] - placed.places[rows, None, :number, :2])
    is_apart = (distance >= halves[:, :, None] + placed.halves[rows, None, :number] + APART).any(3)
    valid &= (is_apart | (surfaces[..., None] != placed.surfaces[rows, None, :number])).all(2)
    if number >= NUM_OBJECTS:  # a goal is elsewhere than its object
        own = number - NUM_OBJECTS
        valid &= surfaces != placed.surfaces[rows, own][:, None]
        valid &= np.hypot(*np.moveaxis(distance[:, :, own], 2, 0)) >= LEAST_MOVE
    found, stands = _reach(shelves, surfaces, places, valid)
    first, each = found.argmax(1), np.arange(len(rows))
    is_found = found[each, first]
    for target, values in ((placed.surfaces, surfaces), (placed.places[..., :2], places), (placed.stands, stands)):
        target[rows[is_found], number] = values[each, first][is_found]
    return is_found


def _reach(
    shelves: _Shelves, surfaces: np.ndarray, places: np.ndarray, valid: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Which of the `valid` `places` [N, A, 2] have a stand from which the arm reaches them, and the nearest one."""
    found, stands = np.zeros_like(valid), np.zeros_like(places)
    at = np.nonzero(valid)
    surface = surfaces[at]
    points = places[at] + shelves.shifts[surface]
    away = points[:, None] - shelves.stands[surface]
    lengths = np.sqrt(np.einsum("npk,npk->np", away, away))
    lengths[lengths < NEAREST] = np.inf
    best = lengths.argmin(1)
    nearest = shelves.stands[surface, best]
    is_near = lengths[np.arange(len(points)), best] <= shelves.reach[surface]
    found[at] = is_near & ~is_hidden(nearest, points, shelves.blocking[surface])
    stands[at] = nearest
    return found, stands


def _draw_starts(rng: np.random.Generator, house: House, points: np.ndarray, stands: np.ndarray) -> np.ndarray:
    """[G, P, 3]: starts around `points` [G, 2] with straight ways to `stands` [G, 3].

    If few places qualify, some appear more than once. If none does, the stand is the start.
    """
    shape = (len(points), _START_ATTEMPTS)
    angle, length = rng.uniform(-np.pi, np.pi, shape), rng.uniform(*START_DISTANCES, shape)
    places = points[:, None] + length[..., None] * np.stack([np.cos(angle), np.sin(angle)], 2)
    valid = is_outside_sweeps(house, places.reshape(-1, 2), all_swept_boxes(house)).reshape(shape)
    grown = house.scene.obstacles + np.array([-1, -1, 1, 1]) * house.scene.radius
    rects = boxed(torch.from_numpy(grown)).expand(len(points), -1, -1)
    origins = torch.from_numpy(np.ascontiguousarray(stands[:, :2]))
    valid &= ~is_blocked(origins, torch.from_numpy(places), rects).numpy()
    count = valid.sum(1)
    order = np.argsort(~valid, axis=1, kind="stable")
    number = np.arange(NUM_STARTS) % np.maximum(count, 1)[:, None]
    chosen = np.take_along_axis(places, np.take_along_axis(order, number, 1)[..., None], 1)
    starts = facing(chosen, np.broadcast_to(points[:, None], chosen.shape))
    return np.where((count > 0)[:, None, None], starts, stands[:, None])


def _draw_far_starts(rng: np.random.Generator, house: House) -> np.ndarray:
    """[E, P, 3]."""
    count, found = NUM_EPISODES * NUM_STARTS, np.empty((0, 2))
    low, high = np.array(house.scene.interior[:2]), np.array(house.scene.interior[2:])
    swept = all_swept_boxes(house)
    while len(found) < count:
        points = rng.uniform(low, high, (3 * count, 2))
        found = np.concatenate([found, points[is_outside_sweeps(house, points, swept)]])
    poses = np.column_stack([found[:count], rng.uniform(-np.pi, np.pi, count)])
    return poses.reshape(NUM_EPISODES, NUM_STARTS, 3)
