"""The shortest-path oracle: it knows the map and always takes the step that brings it closest to the goal.

Its SPL is close to 1, which shows that simulator, distances and actions fit together. The rest is lost by discrete
actions: steps of 0.25 m and turns of 10 degrees do not follow a path exactly.

Legend: N streams, H candidate headings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.simulator import Navigation

_WASTE = 0.5
"""Cost of a metre walked without coming closer, relative to the gain of a metre closer. Turns are free."""

FromPositions = Callable[[Tensor], Tensor]
"""A function of positions [N, 2]."""


class Steering:
    """Follows shortest paths. It compares headings around the direction of the next bend."""

    def __init__(self, simulator: Navigation) -> None:
        self._simulator = simulator
        self._turn = math.radians(simulator.config.turn_angle)
        self._around = torch.arange(-2, 3, device=simulator.device)

    @torch.no_grad()
    def actions(self, distances: FromPositions, next_places: FromPositions) -> Tensor:
        """int64 [N]: the actions that lead along the paths with these distances [N] and next bends [N, 2]."""
        poses = self._simulator.poses
        positions, headings = poses[:, :2], poses[:, 2]
        difference = next_places(positions) - positions
        bearing = torch.atan2(difference[:, 1], difference[:, 0]) - headings
        half_circle = math.pi / self._turn
        turns = (bearing / self._turn).round()[:, None] + self._around  # [N, H]
        turns = torch.remainder(turns + half_circle, 2 * half_circle) - half_circle
        places, travelled = self._simulator.foresee(headings[:, None] + turns * self._turn)
        gain = distances(positions)[:, None] - torch.stack([distances(place) for place in places.unbind(1)], 1)
        score = gain - _WASTE * (travelled - gain)
        # Among equally good headings the nearest wins; otherwise the agent could turn back and forth forever.
        best = (score - 1e-4 * turns.abs()).argmax(1, keepdim=True)
        turn = turns.gather(1, best)[:, 0]
        return torch.where(turn >= 0.5, LEFT, torch.where(turn <= -0.5, RIGHT, FORWARD))


class Oracle:
    """Walks to the goal of a `GoalTask` and stops at `success_distance`."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        self._simulator, self._steering = simulator, Steering(simulator)
        self._task: Any = simulator.task
        self._config: Any = simulator.config

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        columns = self._simulator.columns

        def distances(positions: Tensor) -> Tensor:
            return self._task.distances(columns, positions)

        here = distances(self._simulator.poses[:, :2])
        moves = self._steering.actions(distances, lambda positions: self._task.next_places(columns, positions))
        return torch.where(here <= self._config.success_distance, STOP, moves)
