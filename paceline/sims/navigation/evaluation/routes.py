"""`Route`: what an agent did in one episode, and `Recorder`, which records routes while a list of episodes is played.

Legend: N streams, T decisions of an episode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.episode_list import Act
from paceline.sims.navigation.simulator import Navigation


class Route(NamedTuple):
    """One episode of T decisions."""

    poses: np.ndarray
    """[T, 3]: x, y and heading in radians at every decision."""
    actions: np.ndarray
    """uint8 [T]."""
    distances: np.ndarray
    """[T]: the measure `distance_to_goal` after every action; NaN in tasks without it."""


class Recorder:
    """Wraps an `Act` and records the routes of all streams."""

    def __init__(self, simulator: Navigation, act: Act) -> None:
        self._simulator, self._act = simulator, act
        self._poses: list[Tensor] = []
        self._began: list[Tensor] = []
        self._actions: list[Tensor] = []
        self._distances: list[Tensor] = []

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        if self._actions:
            self._distances.append(self._distance())
        self._poses.append(self._simulator.poses)
        self._began.append(began.clone())
        actions = self._act(obs, began)
        self._actions.append(actions.to(torch.uint8))
        return actions

    def routes(self, count: int) -> list[Route]:
        """The first `count` episodes of the list, when all have been played."""
        began = torch.stack(self._began).cpu().numpy()
        columns = (self._poses, self._actions, [*self._distances, self._distance()])
        poses, actions, distances = (torch.stack(rows).cpu().numpy() for rows in columns)
        starts = [np.append(np.flatnonzero(column), len(column)) for column in began.T]
        routes = []
        for number in range(count):
            turn, stream = divmod(number, len(starts))  # see `Navigation.load_episodes`
            steps = slice(starts[stream][turn], starts[stream][turn + 1])
            routes.append(Route(poses[steps, stream], actions[steps, stream], distances[steps, stream]))
        return routes

    def _distance(self) -> Tensor:
        """[N]: after the last step."""
        measures = self._simulator.last_measures
        if "distance_to_goal" in measures:
            return measures["distance_to_goal"].clone()
        return torch.full((self._simulator.num_envs,), torch.nan, device=self._simulator.device)
