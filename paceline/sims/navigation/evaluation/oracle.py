"""The shortest-path oracle: it knows the map and always takes the step that brings it closest to the goal.

Its SPL is close to 1, which shows that simulator, distances and actions fit together. The rest is lost by discrete
actions: steps of 0.25 m and turns of 10 degrees do not follow a path exactly.

Legend: N streams, C candidate headings.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.sims.navigation.simulator import FORWARD, LEFT, RIGHT, STOP, PointNav

_WASTE = 0.5
"""Cost of a metre walked without coming closer, relative to the gain of a metre closer. Turns are free."""


class Oracle:
    """Compares headings around the direction of the next bend of the shortest path."""

    def __init__(self, simulator: PointNav, seed: int = 0) -> None:
        self._simulator = simulator
        self._turn = math.radians(simulator.config.turn_angle)
        self._around = torch.arange(-2, 3, device=simulator.device)

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        simulator = self._simulator
        poses = simulator.poses
        difference = simulator.next_places() - poses[:, :2]
        bearing = torch.atan2(difference[:, 1], difference[:, 0]) - poses[:, 2]
        half_circle = math.pi / self._turn
        turns = (bearing / self._turn).round()[:, None] + self._around  # [N, C]
        turns = torch.remainder(turns + half_circle, 2 * half_circle) - half_circle
        distances, travelled = simulator.foresee(poses[:, 2, None] + turns * self._turn)
        here = simulator.distances_from(poses[:, :2])
        gain = here[:, None] - distances
        score = gain - _WASTE * (travelled - gain)
        # Among equally good headings the nearest wins; otherwise the agent could turn back and forth forever.
        best = (score - 1e-4 * turns.abs()).argmax(1, keepdim=True)
        turn = turns.gather(1, best)[:, 0]
        action = torch.where(turn >= 0.5, LEFT, torch.where(turn <= -0.5, RIGHT, FORWARD))
        return torch.where(here <= simulator.config.success_distance, STOP, action)
