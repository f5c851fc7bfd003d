"""Frontier exploration with a perfect detector: a classical agent for ObjectNav.

It builds a map from depth and walks to the nearest border between seen and unseen floor. The simulator tells it which
objects are in view. As soon as one of them has the wanted category, it walks there, and stops when that is success. Its
map is that of `map_and_plan`, in the frame of the start.

Legend: H x W pixels.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.map_and_plan import BORDER, CELL, Grid, Planner, grown
from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.rendering.render import MAX_DEPTH
from paceline.sims.navigation.simulator import Navigation

APPROACH = 0.35
"""Distance from an object to the place in front of it, in metres."""
RANGE = 5.0
"""Farther floor does not count as seen, in metres: pixels there are too coarse."""
BESIDE = BORDER - 2
"""A place with an obstacle is replaced by one within so many cells."""
CLOSED = 4
"""A target that was reached, or took too long, closes all cells within so many cells."""
PATIENCE = 60
"""Most steps towards one target."""


class FrontierAgent:
    """One explorer per stream, on the host."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        config, self._simulator = simulator.config, simulator
        self._task: Any = simulator.task
        turn, grid = math.radians(config.turn_angle), Grid.of(simulator.bank)
        self._explorers = [FrontierExplorer(turn, config.forward_step, grid) for _ in range(simulator.num_envs)]

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        simulator, task = self._simulator, self._task
        poses, columns, everyone = simulator.poses, simulator.columns, torch.ones_like(began)
        detected = task.in_view(poses, everyone) & task.wanted(columns)
        depth, gps = obs["depth"].float().cpu().numpy()[:, 0], obs["gps"].double().cpu().numpy()
        actions = []
        for stream, (explorer, is_first) in enumerate(zip(self._explorers, began.tolist(), strict=True)):
            if is_first:
                explorer.start()
            for number in detected[stream].nonzero()[:1, 0].tolist():
                explorer.detect(*self._from_start(stream, number, poses[stream, :2]))
            actions.append(explorer.act(depth[stream], gps[stream]))
        found = task.found(poses, columns, everyone)
        return torch.where(found, STOP, torch.tensor(actions, device=began.device))

    def _from_start(self, stream: int, number: int, position: Tensor) -> np.ndarray:
        """[2, 2]: the middle of an object, and a place in front of it, in the frame of the start."""
        bank, scene = self._simulator.bank, self._simulator.scenes[stream]
        low, high = bank.objects[scene, number].view(2, 2)
        front = torch.minimum(torch.maximum(position, low - APPROACH), high + APPROACH)
        start = bank.object_episodes.view(-1, 5)[self._simulator.rows[stream]].double().cpu().numpy()
        x, y = (torch.stack(((low + high) / 2, front)).double().cpu().numpy() - start[:2]).T
        cos, sin = math.cos(start[2]), math.sin(start[2])
        return np.column_stack([x * cos + y * sin, y * cos - x * sin])


class FrontierExplorer:
    """Explores in its own frame: it starts at the origin and looks along x."""

    def __init__(self, turn_angle: float, forward_step: float, grid: Grid) -> None:
        self._planner, self._turn_angle = Planner(turn_angle, forward_step, grid=grid), turn_angle
        self._grid = grid
        self.start()

    def start(self) -> None:
        self._planner.start(np.zeros(3))
        self._seen = self._grid.empty()
        self._target: np.ndarray | None = None
        self._object: np.ndarray | None = None
        self._front: np.ndarray | None = None
        self._steps = 0

    def detect(self, middle: np.ndarray, front: np.ndarray) -> None:
        """An object of the wanted category is at `middle` [2]; the place `front` [2] is before it."""
        if self._object is None:
            self._object, self._front, self._target = middle, front, None

    def act(self, depth: np.ndarray, gps: np.ndarray) -> int:
        position, heading = gps[:2], math.atan2(gps[3], gps[2])
        self._see(depth, position, heading)
        action = self._follow(depth, position, heading)
        if action == STOP:  # the target is reached or useless, and there may be a better one by now
            self._target = None
            action = self._follow(depth, position, heading)
        if action != STOP:
            return action
        return LEFT if self._object is None else self._turn_to(self._object - position, heading)

    def _turn_to(self, difference: np.ndarray, heading: float) -> int:
        angle = math.remainder(math.atan2(difference[1], difference[0]) - heading, 2 * math.pi)
        if abs(angle) <= self._turn_angle / 2:
            return FORWARD
        return LEFT if angle > 0 else RIGHT

    def _follow(self, depth: np.ndarray, position: np.ndarray, heading: float) -> int:
        """The next action towards the target; STOP if it is reached, or if there is none."""
        if self._target is None:
            target = self._next_target(position)
            if target is None:
                return STOP
            self._aim(target)
        assert self._target is not None
        x, y = self._target - position
        angle = math.atan2(y, x) - heading
        self._planner.heading = heading
        action = self._planner.act(depth[None], np.array([math.hypot(x, y), math.cos(angle), math.sin(angle)]))
        self._steps += 1
        if action == STOP or self._steps > PATIENCE:
            i, j = self._grid.cell_of(self._target)
            self._seen[i - CLOSED : i + CLOSED + 1, j - CLOSED : j + CLOSED + 1] = True
            return STOP
        return action

    def _aim(self, target: np.ndarray) -> None:
        self._target, self._steps = target, 0
        self._planner.head_for(target)

    def _see(self, depth: np.ndarray, position: np.ndarray, heading: float) -> None:
        """Mark the floor that is in view: along each column, up to the nearest thing. The agent's own place always
        is."""
        side = len(depth)
        across = (np.arange(side) + 0.5) * (2.0 / side) - 1.0
        near = np.minimum(depth[: side // 2 + 1].min(0) * MAX_DEPTH, RANGE)
        ahead = np.arange(0.0, RANGE, CELL / 2)[:, None]
        cos, sin = math.cos(heading), math.sin(heading)
        x, y = position[0] + ahead * (cos + across * sin), position[1] + ahead * (sin - across * cos)
        cells = self._grid.cell_of(np.concatenate([position[None], np.stack([x, y], 2)[ahead < near]]))
        self._seen[cells[:, 0], cells[:, 1]] = True

    def _next_target(self, position: np.ndarray) -> np.ndarray | None:
        """The place [2] to walk to; None if nothing is left to explore."""
        return self._nearest_frontier(position) if self._front is None else self._beside_obstacles(self._front)

    def _beside_obstacles(self, place: np.ndarray) -> np.ndarray | None:
        """The nearest place without an obstacle, seen or not; None if there is none."""
        i, j = self._grid.cell_of(place).clip(BESIDE + 2, self._grid.side - BESIDE - 3)
        corner = np.array([i - BESIDE, j - BESIDE])
        window = self._planner.occupied[i - BESIDE : i + BESIDE + 1, j - BESIDE : j + BESIDE + 1]
        return self._nearest(np.argwhere(~grown(grown(window))) + corner, place)

    def _nearest_frontier(self, position: np.ndarray) -> np.ndarray | None:
        """The nearest seen place beside unseen ones; None if none can be reached.

        Places that can be reached over seen cells spread from the agent, until they include such a place.
        """
        i, j = np.nonzero(self._seen)
        window = (slice(i.min() - 3, i.max() + 4), slice(j.min() - 3, j.max() + 4))
        corner = np.array([window[0].start, window[1].start])
        seen = self._seen[window]
        free = seen & ~grown(self._planner.occupied[window])
        frontier = free & grown(~seen)
        reached = np.zeros_like(seen)
        reached[tuple(self._grid.cell_of(position) - corner)] = True
        reached = grown(grown(reached))  # the agent may stand close to an obstacle
        while not (reached & frontier).any():
            wider = reached | (grown(reached) & free)
            if (wider == reached).all():
                return None
            reached = wider
        return self._nearest(np.argwhere(reached & frontier) + corner, position)

    def _nearest(self, cells: np.ndarray, place: np.ndarray) -> np.ndarray | None:
        """The middle [2] of the cell nearest to `place`; None without cells."""
        places = self._grid.middles(cells)
        return places[np.linalg.norm(places - place, axis=1).argmin()] if len(places) else None
