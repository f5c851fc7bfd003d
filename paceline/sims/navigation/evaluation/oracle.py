"""The shortest-path oracle: it knows the map and always takes the step that brings it closest to the goal.

Its SPL is close to 1, which shows that simulator, distances and actions fit together. The rest is lost by discrete
actions: steps of 0.25 m and turns of 10 degrees do not follow a path exactly.

Legend: N streams, C candidate headings.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.simulator import Navigation

_WASTE = 0.5
"""Cost of a metre walked without coming closer, relative to the gain of a metre closer. Turns are free."""


class Oracle:
    """Compares headings around the direction of the next bend of the shortest path. For a `GoalTask`."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        self._simulator = simulator
        self._task: Any = simulator.task
        self._config: Any = simulator.config
        self._turn = math.radians(simulator.config.turn_angle)
        self._around = torch.arange(-2, 3, device=simulator.device)

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        here = self._task.distances(self._simulator.columns, self._simulator.poses[:, :2])
        return torch.where(here <= self._config.success_distance, STOP, self.move())

    @torch.no_grad()
    def move(self) -> Tensor:
        """The action that leads to the goal."""
        simulator, task = self._simulator, self._task
        poses, columns = simulator.poses, simulator.columns
        difference = task.next_places(columns, poses[:, :2]) - poses[:, :2]
        bearing = torch.atan2(difference[:, 1], difference[:, 0]) - poses[:, 2]
        half_circle = math.pi / self._turn
        turns = (bearing / self._turn).round()[:, None] + self._around  # [N, C]
        turns = torch.remainder(turns + half_circle, 2 * half_circle) - half_circle
        places, travelled = simulator.foresee(poses[:, 2, None] + turns * self._turn)
        distances = torch.stack([task.distances(columns, positions) for positions in places.unbind(1)], 1)
        gain = task.distances(columns, poses[:, :2])[:, None] - distances
        score = gain - _WASTE * (travelled - gain)
        # Among equally good headings the nearest wins; otherwise the agent could turn back and forth forever.
        best = (score - 1e-4 * turns.abs()).argmax(1, keepdim=True)
        turn = turns.gather(1, best)[:, 0]
        return torch.where(turn >= 0.5, LEFT, torch.where(turn <= -0.5, RIGHT, FORWARD))
