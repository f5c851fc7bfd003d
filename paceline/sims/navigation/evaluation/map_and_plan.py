"""A classical agent: it builds an occupancy map from depth, plans with A* and follows the path.

It has the same inputs as a learned agent: depth, the goal relative to itself, and its own actions. Turns are exact, so
it knows its heading. Its position follows from the heading and the goal. Unseen space counts as free.

Legend: N streams, K images of a stream, H x W pixels, cells (i, j) along x and y.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.rendering.render import CAMERA_HEIGHT, MAX_DEPTH
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.scene import AGENT_HEIGHT
from paceline.sims.navigation.simulator import Navigation

CELL = 0.1
REACH = 26.05
"""Half the side of the map in metres, in scenes that it holds. The start is at the centre of the middle cell."""
BORDER = 10
"""Cells of the map beyond the farthest place of a larger scene."""
STOP_DISTANCE = 0.19
STOP_MARGIN = 0.01
"""It stops so far within the distance of success, in metres: its position is not exact. Where success is nearer than
twice this margin, it stops at half the distance."""
LOOK_AHEAD = 1.0
"""Distance along the path to aim at, if nothing is in between."""
COSTS = (1.0, 3.0, 60.0, 400.0, math.inf)
"""Cost of a step to a free cell, to one near an obstacle, to one too close to it, onto it, and to the map's border. All
but the last are finite: the map can be wrong, and then any path is better than none."""


@dataclass(frozen=True)
class Grid:
    """The cells of a square map around the start."""

    reach: float = REACH
    """Half the side in metres."""

    @classmethod
    def of(cls, bank: SceneBank) -> Grid:
        """It holds every scene of the bank, wherever the agent starts."""
        sides = bank.interior[:, 2:] - bank.interior[:, :2]
        longest = float(sides.double().norm(dim=1).amax())
        return cls(max(REACH, (math.ceil(longest / CELL) + BORDER + 0.5) * CELL))

    @property
    def side(self) -> int:
        """In cells."""
        return round(2 * self.reach / CELL)

    def empty(self) -> np.ndarray:
        return np.zeros((self.side, self.side), bool)

    def cells_of(self, places: np.ndarray) -> np.ndarray:
        """The cells of `places` [*, 2] in metres, within the map or not."""
        return np.floor((places + self.reach) / CELL).astype(int)

    def cell_of(self, places: np.ndarray) -> np.ndarray:
        """The nearest cells to `places` [*, 2] that are not at the map's border."""
        return self.cells_of(places).clip(2, self.side - 3)

    def middles(self, cells: np.ndarray) -> np.ndarray:
        return (cells + 0.5) * CELL - self.reach


SMALLEST = Grid()


class MapAndPlan:
    """One planner per stream, on the host.

    Image k of `depth` [N, K, H, W] looks `bearings[k]` radians to the left of the heading.
    """

    def __init__(
        self,
        simulator: Navigation,
        seed: int = 0,
        *,
        bearings: Sequence[float] = (0.0,),
        max_depth: float = MAX_DEPTH,
    ) -> None:
        config: Any = simulator.config
        turn, grid = math.radians(config.turn_angle), Grid.of(simulator.bank)
        success = config.success_distance
        stop = min(STOP_DISTANCE, max(success / 2, success - STOP_MARGIN))
        self._planners = [
            Planner(turn, config.forward_step, bearings, max_depth, grid=grid, stop_distance=stop)
            for _ in range(simulator.num_envs)
        ]

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        depth = obs["depth"].float().cpu().numpy()
        if obs["depth"].dtype == torch.uint8:
            depth = depth / 255.0
        goals, fresh = obs["goal"].cpu().numpy(), began.tolist()
        actions = []
        for planner, images, goal, is_first in zip(self._planners, depth, goals, fresh, strict=True):
            if is_first:
                planner.start(goal)
            actions.append(planner.act(images, goal))
        return torch.tensor(actions, device=obs["goal"].device)


class Planner:
    """Plans in its own frame: it starts at the origin and looks along x."""

    def __init__(
        self,
        turn_angle: float,
        forward_step: float,
        bearings: Sequence[float] = (0.0,),
        max_depth: float = MAX_DEPTH,
        *,
        grid: Grid = SMALLEST,
        stop_distance: float = STOP_DISTANCE,
    ) -> None:
        self._grid, self._stop_distance = grid, stop_distance
        self._turn, self._step, self._bearings, self._max_depth = turn_angle, forward_step, bearings, max_depth
        self.start(np.zeros(3, np.float32))

    def start(self, goal: np.ndarray) -> None:
        self.occupied = self._grid.empty()
        """The map: the cells with obstacles."""
        self.heading = 0.0
        """Follows from its own actions. An agent that takes other actions must set it."""
        self._position = np.zeros(2)
        self._path: list[tuple[int, int]] = []
        self._last = STOP
        self._side = 1
        """Where it steps if the goal is nearer than a step: 1 to the left, -1 to the right."""
        self.head_for(_from_polar(goal))

    def head_for(self, goal: np.ndarray) -> None:
        """Change the goal to a place [2] in the planner's frame. The next observed goal must be this one."""
        self._goal = goal
        self._path = []

    def act(self, depth: np.ndarray, goal: np.ndarray) -> int:
        """From the images `depth` [K, H, W] and the observed `goal` [3]."""
        self._locate(goal)
        if goal[0] <= self._stop_distance:
            return STOP
        if self._add_obstacles(depth) or not self._path or self._is_off_path():
            self._path = self._plan()
        angle = self._aim()
        if goal[0] < self._step - self._stop_distance:  # a step to the goal ends beyond it: first one to its side
            angle = math.remainder(angle + self._side * math.pi / 2, 2 * math.pi)
        if abs(angle) < 0.6 * self._turn:
            self._last = FORWARD
            return self._last
        # It finishes a large turn in the same direction, so that changing plans do not turn it back and forth.
        if abs(angle) < math.pi / 2 or self._last not in (LEFT, RIGHT):
            self._last = LEFT if angle > 0 else RIGHT
        self.heading += self._turn if self._last == LEFT else -self._turn
        return self._last

    def _locate(self, goal: np.ndarray) -> None:
        """Compute the position from the goal's. If the last step was short, mark an unseen obstacle ahead."""
        cos, sin = math.cos(self.heading), math.sin(self.heading)
        ahead, left = _from_polar(goal)
        position = self._goal - np.array([cos * ahead - sin * left, sin * ahead + cos * left])
        if self._last == FORWARD and np.hypot(*(position - self._position)) < 0.4 * self._step:
            self._mark(position + 0.18 * np.array([[cos, sin]]))
            self._path, self._side = [], -self._side
        self._position = position

    def _add_obstacles(self, depth: np.ndarray) -> bool:
        """Add visible obstacles to the map; whether a new one is on the path."""
        views = zip(depth, self._bearings, strict=True)
        return self._mark(np.concatenate([self._obstacles(image, self.heading + bearing) for image, bearing in views]))

    def _obstacles(self, depth: np.ndarray, heading: float) -> np.ndarray:
        """[points, 2]: where obstacles are in an image [H, W] that looks along `heading`."""
        side = len(depth)
        centers = (np.arange(side) + 0.5) * (2.0 / side) - 1.0
        metres = depth * self._max_depth
        height = CAMERA_HEIGHT - centers[:, None] * metres
        solid = (height > 0.1) & (height < AGENT_HEIGHT) & (depth < 0.999)
        cos, sin = math.cos(heading), math.sin(heading)
        x = self._position[0] + metres * (cos + centers * sin)
        y = self._position[1] + metres * (sin - centers * cos)
        # Slightly behind the surface, so that it belongs to the cell behind it.
        return np.column_stack([x[solid] + 0.02 * cos, y[solid] + 0.02 * sin])

    def _mark(self, points: np.ndarray) -> bool:
        cells = self._grid.cells_of(points)
        cells = cells[((cells >= 2) & (cells < self._grid.side - 2)).all(1)]
        fresh = cells[~self.occupied[cells[:, 0], cells[:, 1]]]
        self.occupied[fresh[:, 0], fresh[:, 1]] = True
        if not len(fresh) or not self._path:
            return False
        on_path = np.zeros_like(self.occupied)
        on_path[tuple(np.array(self._path).T)] = True
        return bool(any(on_path[i - 1 : i + 2, j - 1 : j + 2].any() for i, j in set(map(tuple, fresh.tolist()))))

    def _is_off_path(self) -> bool:
        return float(np.abs(np.array(self._path) - self._grid.cell_of(self._position)).max(1).min()) > 2

    def _plan(self) -> list[tuple[int, int]]:
        """A path of cells to the goal, through obstacles if there is no other."""
        (i, j), (m, n) = self._grid.cell_of(np.stack([self._position, self._goal])).tolist()
        blocked = grown(self.occupied)
        kinds = grown(blocked).astype(np.uint8) + blocked + self.occupied
        kinds[[0, -1]] = kinds[:, [0, -1]] = len(COSTS) - 1
        return a_star(kinds, COSTS, (i, j), (m, n))

    def _aim(self) -> float:
        """The angle to the farthest visible cell of the path within `LOOK_AHEAD`."""
        here = self._grid.cell_of(self._position)
        at = int(np.abs(np.array(self._path) - here).sum(1).argmin())
        blocked = _grown_at(self.occupied)
        target = self._path[min(at + 1, len(self._path) - 1)]
        for ahead in range(min(at + round(LOOK_AHEAD / CELL), len(self._path) - 1), at, -1):
            if not any(blocked(i, j) for i, j in _line(here, self._path[ahead])):
                target = self._path[ahead]
                break
        place = self._goal if target == self._path[-1] else self._grid.middles(np.array(target))
        x, y = place - self._position
        return math.remainder(math.atan2(y, x) - self.heading, 2 * math.pi)


def a_star(
    kinds: np.ndarray, costs: tuple[float, ...], start: tuple[int, int], goal: tuple[int, int]
) -> list[tuple[int, int]]:
    """The cheapest path over the cells of `kinds`, including both ends, in steps to the eight neighbours.

    A step onto a cell of kind k costs `costs[k]`, at least 1, times its length. No path may lead over the border.
    """
    width, kind_of = kinds.shape[1], kinds.tobytes()
    first, last = start[0] * width + start[1], goal[0] * width + goal[1]
    steps = [(di * width + dj, math.hypot(di, dj)) for di in (-1, 0, 1) for dj in (-1, 0, 1) if di or dj]
    least, came_from = {first: 0.0}, {first: first}
    front, closed = [(0.0, first)], set()
    while front:
        _, cell = heapq.heappop(front)
        if cell == last:
            break
        if cell in closed:
            continue
        closed.add(cell)
        so_far = least[cell]
        for offset, length in steps:
            other = cell + offset
            total = so_far + length * costs[kind_of[other]]
            if total < least.get(other, math.inf):
                least[other], came_from[other] = total, cell
                di, dj = abs(other // width - goal[0]), abs(other % width - goal[1])
                heapq.heappush(front, (total + max(di, dj) + 0.41421 * min(di, dj), other))
    path = [last]
    while path[-1] != first:
        path.append(came_from[path[-1]])
    return [divmod(cell, width) for cell in reversed(path)]


def _from_polar(goal: np.ndarray) -> np.ndarray:
    """Metres ahead and to the left."""
    return float(goal[0]) * np.array([float(goal[1]), float(goal[2])])


def grown(cells: np.ndarray) -> np.ndarray:
    """`cells` and their eight neighbours."""
    grown = cells.copy()
    grown[1:] |= cells[:-1]
    grown[:-1] |= cells[1:]
    wide = grown.copy()
    wide[:, 1:] |= grown[:, :-1]
    wide[:, :-1] |= grown[:, 1:]
    return wide


def _grown_at(cells: np.ndarray):
    return lambda i, j: bool(cells[i - 1 : i + 2, j - 1 : j + 2].any())


def _line(start: np.ndarray, end: tuple[int, int]) -> list[tuple[int, int]]:
    """The cells on the line from one cell to another."""
    count = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1))
    i, j = (np.round(np.linspace(a, b, count + 1)).astype(int).tolist() for a, b in zip(start, end, strict=True))
    return list(zip(i, j, strict=True))
