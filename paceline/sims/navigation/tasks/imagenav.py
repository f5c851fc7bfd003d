"""ImageGoal navigation: walk to where a picture was taken, and stop there.

Episodes, reward and measures are PointNav's. Instead of the goal's position, the agent observes the picture from the
goal: `goal_depth` and `goal_rgb`, as the sensors are. The direction of that picture is a hash of the scene and the
episode, so it is the same in every process.

Legend: N streams, E episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor

from paceline.sims.navigation.config import ImageNavConfig, PointNavConfig
from paceline.sims.navigation.rendering.image_sensors import ImageSensors, Place, image_spaces
from paceline.sims.navigation.tasks.pointnav import PointNav
from paceline.sims.navigation.tasks.protocol import Columns, Judgement, Marks, Streams
from paceline.sims.randomness import MASK, combine, mix


class ImageNav:
    """A `GoalTask`: `PointNav` with another goal sensor."""

    measure_names = PointNav.measure_names
    num_columns = PointNav.num_columns

    def __init__(self, config: ImageNavConfig, streams: Streams) -> None:
        point = PointNavConfig(success_distance=config.success_distance, max_distance=config.max_distance)
        self._point, self._streams = PointNav(point, streams), streams
        self._sensors = ImageSensors(streams.bank, replace(config, image_noise=0.0))
        parts = image_spaces(config)
        self.spaces: dict[str, Space] = {f"goal_{name}": space for name, space in parts.items()}
        self._shown = torch.full_like(streams.rows, -1)
        """int64 [N]: the episodes that `_pictures` belong to."""
        self._pictures = self._sensors.see(self._goals(streams.rows))

    def check_scenes(self, rows: Mapping[str, Tensor]) -> None:
        self._point.check_scenes(rows)

    def scenes_changed(self) -> None:
        self._point.scenes_changed()
        self._shown.fill_(-1)  # the picture of an episode may be another one

    def begin(self, ended: Tensor, rows: Tensor) -> Tensor:
        return self._point.begin(ended, rows)

    def advance(self, columns: Tensor, positions: Tensor) -> Columns:
        return self._point.advance(columns, positions)

    def judge(self, before: Tensor, after: Tensor, stopped: Tensor) -> Judgement:
        return self._point.judge(before, after, stopped)

    def observe(self, state: Tensor, rows: Tensor, noise_keys: Tensor) -> dict[str, Tensor]:
        """Only new episodes need new pictures."""
        now = rows[-len(self._shown) :]
        pictures = self._sensors.renew(self._pictures, self._goals(now), now != self._shown)
        if len(rows) > len(now):  # before and after the reset of some
            seen = {name: torch.cat((self._pictures[name], values)) for name, values in pictures.items()}
        else:
            seen = pictures
        self._shown.copy_(now)
        for name, values in pictures.items():
            self._pictures[name].copy_(values)
        return {f"goal_{name}": values for name, values in seen.items()}

    def distances(self, columns: Tensor, positions: Tensor) -> Tensor:
        return self._point.distances(columns, positions)

    def next_places(self, columns: Tensor, positions: Tensor) -> Tensor:
        return self._point.next_places(columns, positions)

    def marks(self, row: int) -> Marks:
        return self._point.marks(row)

    def state_dict(self) -> dict[str, Any]:
        return self._point.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._point.load_state_dict(state)
        self._shown.copy_(self._streams.rows)
        for name, values in self._sensors.see(self._goals(self._streams.rows)).items():
            self._pictures[name].copy_(values)

    def _goals(self, rows: Tensor) -> Place:
        """Where the pictures of the episodes `rows` are taken."""
        bank = self._streams.bank
        scenes = rows // bank.num_episodes
        keys = combine(mix(bank.seeds[scenes] & MASK), rows % bank.num_episodes)
        headings = keys.float().mul_(2.0 * math.pi / (MASK + 1))
        return Place(scenes, torch.cat((bank.episodes.view(-1, 6)[rows, 3:5], headings[:, None]), 1), keys)
