"""Agents for PointNav that know a part of the apartment, for `benchmarks.navigation_limits`.

`WideMapper` is map-and-plan with several cameras. `SeenPlanner` knows exactly what it has seen: the simulator tells it
the obstacles, cut into pieces of at most `PIECE` metres. It takes the rest as free and follows the shortest path.

Legend: N streams, K views, H x W pixels, P pieces, V corners of known pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.map_and_plan import MapAndPlan
from paceline.sims.navigation.evaluation.oracle import Steering
from paceline.sims.navigation.layout import STOP
from paceline.sims.navigation.rendering.render import CAMERA_HEIGHT, MAX_DEPTH, Camera
from paceline.sims.navigation.rendering.trace import trace
from paceline.sims.navigation.scenes import geodesic
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.free_space import NODE, SIGHT
from paceline.sims.navigation.scenes.geodesic import sees
from paceline.sims.navigation.scenes.geometry import FAR, NOWHERE, boxed
from paceline.sims.navigation.scenes.scene import AGENT_HEIGHT, AGENT_RADIUS, Scene
from paceline.sims.navigation.simulator import Navigation

VIEWS = {90: (0.0,), 180: (math.pi / 4, -math.pi / 4), 360: (0.0, math.pi / 2, math.pi, -math.pi / 2)}
"""By field of view in degrees: the bearings of cameras that see 90 degrees each."""
UNLIMITED = 100.0
"""A range in metres beyond every apartment."""
PIECE = 1.0
"""Longest side of a piece in metres. A wall beyond the piece that was seen stays unknown."""
CELL = 0.05
MARGIN = 1.0
"""Of the grid around the interior, in metres."""
OUTER = 0.2
"""Thickness of the outer walls in metres."""
SIDE = 32
"""Pixels along a side of an image of `SeenPlanner`."""
TOUCH = 0.05
"""An obstacle within this distance of the agent's body is known, in metres."""


def views(bank: SceneBank, camera: Camera, scenes: Tensor, poses: Tensor, bearings: Sequence[float]) -> Tensor:
    """[N, K, H, W]: depth in metres at `poses` [N, 3] in `scenes` [N], from all bearings."""
    turned = poses[:, None].repeat(1, len(bearings), 1)
    turned[:, :, 2] += torch.tensor(bearings, device=poses.device)
    depth = trace(bank, camera, scenes.repeat_interleave(len(bearings)), turned.view(-1, 3), False).depth
    return depth.view(len(poses), len(bearings), *depth.shape[1:]).mul_(camera.max_depth)


class WideMapper:
    """Map-and-plan with a field of view and a range of its own."""

    def __init__(self, simulator: Navigation, *, degrees: int = 90, max_depth: float = MAX_DEPTH) -> None:
        self._simulator, self._bearings = simulator, VIEWS[degrees]
        self._camera = Camera(simulator.config.resolution, simulator.device, max_depth=max_depth)
        self._mapper = MapAndPlan(simulator, bearings=self._bearings, max_depth=max_depth)

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        simulator = self._simulator
        depth = views(simulator.bank, self._camera, simulator.scenes, simulator.poses, self._bearings)
        depth = depth / self._camera.max_depth
        return self._mapper.act({**obs, "depth": depth}, began)


@dataclass(frozen=True)
class Pieces:
    """The obstacles of a scene in pieces, and where they are."""

    rects: np.ndarray
    """float64 [P, 4]."""
    corner: np.ndarray
    """float64 [2]: of the grids."""
    grid: np.ndarray
    """int16: the piece in each cell; -1 for none."""
    rooms: np.ndarray
    """int16: the room in each cell; -1 for none."""
    of_rooms: np.ndarray
    """bool [rooms, P]: the pieces in and around each room."""

    @classmethod
    def of(cls, scene: Scene) -> Pieces:
        x0, y0, x1, y1 = scene.interior
        outer = [(x0 - OUTER, y0 - OUTER, x0, y1 + OUTER), (x1, y0 - OUTER, x1 + OUTER, y1 + OUTER)]
        outer += [(x0, y0 - OUTER, x1, y0), (x0, y1, x1, y1 + OUTER)]
        rects = np.concatenate([cut(np.array(rect)) for rect in [*scene.obstacles, *np.array(outer)]])
        corner = np.array([x0 - MARGIN, y0 - MARGIN])
        shape = np.ceil((np.array([x1, y1]) + MARGIN - corner) / CELL).astype(int)
        areas = np.array(scene.rooms, np.float64).reshape(-1, 4)
        near = areas + np.array([-1, -1, 1, 1]) * OUTER
        low, high = np.maximum(near[:, None, :2], rects[None, :, :2]), np.minimum(near[:, None, 2:], rects[None, :, 2:])
        return cls(rects, corner, _painted(rects, corner, shape), _painted(areas, corner, shape), (low < high).all(2))

    def at(self, grid: np.ndarray, points: np.ndarray) -> np.ndarray:
        """The numbers that `grid` has at `points` [*, 2], each once."""
        i, j = np.floor((points - self.corner) / CELL).astype(int).T
        inside = (i >= 0) & (j >= 0) & (i < grid.shape[0]) & (j < grid.shape[1])
        found = np.unique(grid[i[inside], j[inside]])
        return found[found >= 0]

    def touching(self, position: np.ndarray) -> np.ndarray:
        """bool [P]: the pieces that the agent at `position` [2] almost touches."""
        away = np.maximum(self.rects[:, :2] - position, position - self.rects[:, 2:]).max(1)
        return away < AGENT_RADIUS + TOUCH


def cut(rect: np.ndarray) -> np.ndarray:
    """[*, 4]: a rectangle in pieces."""
    columns, rows = (max(1, math.ceil((rect[i + 2] - rect[i]) / PIECE - 1e-9)) for i in (0, 1))
    xs, ys = np.linspace(rect[0], rect[2], columns + 1), np.linspace(rect[1], rect[3], rows + 1)
    return np.array([(xs[i], ys[j], xs[i + 1], ys[j + 1]) for i in range(columns) for j in range(rows)])


def _painted(rects: np.ndarray, corner: np.ndarray, shape: np.ndarray) -> np.ndarray:
    grid = np.full(shape, -1, np.int16)
    for number, rect in enumerate(rects):
        (i0, j0), (i1, j1) = (np.round((place - corner) / CELL).astype(int) for place in (rect[:2], rect[2:]))
        grid[i0 : max(i1, i0 + 1), j0 : max(j1, j0 + 1)] = number
    return grid


class Knowledge:
    """What one stream knows: its pieces, and the shortest paths among them to the goal."""

    def __init__(self, pieces: Pieces, goal: np.ndarray, *, memory: float, whole_rooms: bool) -> None:
        self.pieces, self._goal, self._memory, self._whole_rooms = pieces, goal, memory, whole_rooms
        self._seen = np.full(len(pieces.rects), -math.inf)
        self._step = 0
        self._known = np.zeros(len(pieces.rects), bool)
        self._plan()

    def add(self, position: np.ndarray, solid: np.ndarray, points: np.ndarray) -> bool:
        """Add what is seen: points [*, 2] of obstacles, and of everything. Whether the plan changed."""
        self._step += 1
        self._seen[self.pieces.at(self.pieces.grid, solid)] = self._step
        self._seen[self.pieces.touching(position)] = self._step
        if self._whole_rooms:
            self._seen[self.pieces.of_rooms[self.pieces.at(self.pieces.rooms, points)].any(0)] = self._step
        known = self._seen > self._step - self._memory
        if (known == self._known).all():
            return False
        self._known = known
        self._plan()
        return True

    def _plan(self) -> None:
        self.rects = self.pieces.rects[self._known]
        self.nodes = convex_corners(self.rects)
        between = np.where(sees(self.nodes, self.nodes, self.rects, SIGHT), _lengths(self.nodes, self.nodes), FAR)
        goal = self._goal[None]
        self.distances = np.where(sees(self.nodes, goal, self.rects, SIGHT), _lengths(self.nodes, goal), FAR)[:, 0]
        while len(self.nodes):
            shorter = np.minimum(self.distances, (between + self.distances).min(1))
            if (shorter >= self.distances - 1e-9).all():
                return
            self.distances = shorter


def convex_corners(rects: np.ndarray) -> np.ndarray:
    """[V, 2]: corners of `rects` [P, 4] whose other three quadrants are free, as `free_space.convex_corners`."""
    grown = rects + np.array([-1, -1, 1, 1]) * NODE
    found = []
    for dx, dy, columns in ((-1, -1, [0, 1]), (1, -1, [2, 1]), (1, 1, [2, 3]), (-1, 1, [0, 3])):
        corners = grown[:, columns]
        free = np.ones(len(corners), bool)
        for sx, sy in ((dx, dy), (dx, -dy), (-dx, dy)):
            x, y = (corners + np.array([sx, sy]) * 1e-5).T
            covered = (x[:, None] > grown[:, 0]) & (x[:, None] < grown[:, 2])
            free &= ~(covered & (y[:, None] > grown[:, 1]) & (y[:, None] < grown[:, 3])).any(1)
        found.append(corners[free])
    return np.unique(np.round(np.concatenate(found), 6), axis=0)


def _lengths(points: np.ndarray, targets: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - targets[None], axis=2)


class SeenPlanner:
    """Follows the shortest path through what it knows. What it has not seen counts as free."""

    def __init__(
        self,
        simulator: Navigation,
        *,
        degrees: int = 360,
        memory: float = math.inf,
        whole_rooms: bool = False,
    ) -> None:
        """`memory`: steps until it forgets what it no longer sees. `whole_rooms`: a room is known as soon as a part of
        it is seen."""
        self._simulator, self._bearings = simulator, VIEWS[degrees]
        self._options: dict[str, Any] = {"memory": memory, "whole_rooms": whole_rooms}
        self._camera = Camera(SIDE, simulator.device, max_depth=UNLIMITED)
        self._steering = Steering(simulator)
        self._pieces = cache(lambda scene: Pieces.of(full_scene(simulator.bank, scene)))
        self._known: dict[int, Knowledge] = {}
        self._looked_from = torch.full((simulator.num_envs, 2), torch.nan)
        self._paths = Believed(simulator.num_envs)

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        simulator = self._simulator
        goals = simulator.columns[:, :2].double().numpy()
        for stream in began.nonzero()[:, 0].tolist():
            pieces = self._pieces(int(simulator.scenes[stream]))
            self._known[stream] = known = Knowledge(pieces, goals[stream], **self._options)
            self._paths.set(stream, known, goals[stream])
        looking = self._looking(began)
        poses = simulator.poses[looking]
        depth = views(simulator.bank, self._camera, simulator.scenes[looking], poses, self._bearings).numpy()
        for stream, images, pose in zip(looking.tolist(), depth, poses.double().numpy(), strict=True):
            known = self._known[stream]
            if known.add(pose[:2], *hits(images, pose, self._bearings)):
                self._paths.set(stream, known, goals[stream])
        moves = self._steering.actions(self._paths.distances, self._paths.next_places)
        distances = simulator.task.distances(simulator.columns, simulator.poses[:, :2])  # type: ignore[attr-defined]
        return torch.where(distances <= simulator.config.success_distance, STOP, moves)  # type: ignore[attr-defined]

    def _looking(self, began: Tensor) -> Tensor:
        """int64 [*]: the streams that look. Who sees all around learns nothing by turning."""
        positions = self._simulator.poses[:, :2]
        moved = (positions != self._looked_from).any(1) | began
        self._looked_from = positions
        return moved.nonzero()[:, 0] if len(self._bearings) == 4 else torch.arange(len(began))


class Believed:
    """Shortest paths of N streams, each among its known pieces."""

    def __init__(self, num: int) -> None:
        self._nodes, self._distances = torch.zeros(num, 0, 2), torch.zeros(num, 0)
        self._rects, self._goals = torch.zeros(num, 0, 4), torch.zeros(num, 1, 2)

    def set(self, stream: int, known: Knowledge, goal: np.ndarray) -> None:
        nowhere = boxed(torch.tensor(NOWHERE))
        self._nodes = _put(self._nodes, stream, torch.from_numpy(known.nodes), torch.zeros(2))
        self._distances = _put(self._distances, stream, torch.from_numpy(known.distances), torch.tensor(FAR))
        grown = torch.from_numpy(known.rects + np.array([-1, -1, 1, 1]) * SIGHT)
        self._rects = _put(self._rects, stream, boxed(grown), nowhere)
        self._goals[stream, 0] = torch.from_numpy(goal)

    def distances(self, positions: Tensor) -> Tensor:
        return geodesic.query(positions, self._nodes, self._distances, self._goals, self._rects)

    def next_places(self, positions: Tensor) -> Tensor:
        targets, lengths = geodesic.candidates(positions, self._nodes, self._distances, self._goals, self._rects)
        return targets.gather(1, lengths.argmin(1)[:, None, None].expand(-1, 1, 2))[:, 0]


def _put(rows: Tensor, stream: int, values: Tensor, padding: Tensor) -> Tensor:
    """`rows` [N, *] with other values for a stream, and longer if these need it."""
    if len(values) > rows.shape[1]:
        longer = padding.expand(len(rows), len(values), *padding.shape).clone()
        longer[:, : rows.shape[1]] = rows
        rows = longer
    rows[stream] = padding
    rows[stream, : len(values)] = values.float()
    return rows


def hits(depth: np.ndarray, pose: np.ndarray, bearings: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """[*, 2] each: where the rays of images [K, H, W] in metres hit obstacles, and where they hit anything."""
    side = depth.shape[-1]
    centers = (np.arange(side) + 0.5) * (2.0 / side) - 1.0
    solid, points = [], []
    for image, bearing in zip(depth, bearings, strict=True):
        height = CAMERA_HEIGHT - centers[:, None] * image
        cos, sin = math.cos(pose[2] + bearing), math.sin(pose[2] + bearing)
        behind = image + 0.03  # the surface belongs to the cell behind it
        found = np.stack([pose[0] + behind * (cos + centers * sin), pose[1] + behind * (sin - centers * cos)], -1)
        solid.append(found[(height > 0.05) & (height < AGENT_HEIGHT)])
        points.append(found.reshape(-1, 2))
    return np.concatenate(solid), np.concatenate(points)


def full_scene(bank: SceneBank, number: int) -> Scene:
    """A generated scene with its rooms, which a bank does not store."""
    return bank.make(bank.tier, int(bank.seeds[number]))
