"""Flee: get as far as possible from the start.

D is the geodesic distance from the start, divided by that of the farthest place of the scene. The reward is five times
the increase of D, so an episode's return is five times the D at its end.

An episode starts at the goal of PointNav's episode of the same number, because the bank has the distances of all nodes
from the goals. So the distance from the start costs what PointNav's distance to the goal costs, and is as exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor

from paceline.sims.navigation.config import FleeConfig
from paceline.sims.navigation.scenes.geodesic import shortest_path
from paceline.sims.navigation.scenes.paths import Destinations
from paceline.sims.navigation.tasks.protocol import Columns, Judgement, Marks, Streams

REWARD = 5.0
# Columns of the state: the start, the distance of the farthest place, and D.
START_X, START_Y, LARGEST, SHARE = range(3, 7)


class Flee:
    """A `Task`."""

    measure_names = ("fled", "distance_from_start", "collisions")
    num_columns = 4

    def __init__(self, config: FleeConfig, streams: Streams) -> None:
        self._streams = streams
        self.spaces: dict[str, Space] = {}

    def check_scenes(self, rows: Mapping[str, Tensor]) -> None:
        """Accepts all."""

    def scenes_changed(self) -> None:
        self._streams.choices.fill_(self._streams.bank.num_episodes)

    def begin(self, ended: Tensor, rows: Tensor) -> Tensor:
        bank = self._streams.bank
        _, _, heading, x, y, _ = bank.episodes.view(-1, 6)[rows].unbind(1)
        largest = bank.farthest[rows // bank.num_episodes, bank.episode_goals.view(-1)[rows], 2]
        return torch.stack((x, y, heading, x, y, largest, torch.zeros_like(x)), 1)

    def advance(self, columns: Tensor, positions: Tensor) -> Columns:
        start_x, start_y, largest, _ = columns.unbind(1)
        bank, streams = self._streams.bank, self._streams
        at = bank.episode_goals.view(-1)[streams.rows]
        back = Destinations(streams.scenes, bank.node_distances, at, columns[:, None, :2])
        return start_x, start_y, largest, streams.paths.lengths(positions, back) / largest

    def judge(self, before: Tensor, after: Tensor, stopped: Tensor) -> Judgement:
        share, largest = after[:, SHARE], after[:, LARGEST]
        measures = {"fled": share, "distance_from_start": share * largest, "largest_distance": largest}
        return Judgement((share - before[:, SHARE]).mul_(REWARD), measures)

    def observe(self, state: Tensor, rows: Tensor, noise_keys: Tensor) -> dict[str, Tensor]:
        return {}

    def marks(self, row: int) -> Marks:
        bank = self._streams.bank
        scene = row // bank.num_episodes
        start_x, start_y = bank.episodes.view(-1, 6)[row, 3:5].tolist()
        x, y, _ = bank.farthest[scene, bank.episode_goals.view(-1)[row]].tolist()
        return Marks((start_x, start_y), (x, y), shortest_path(bank.scene(scene), (start_x, start_y), (x, y)))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
