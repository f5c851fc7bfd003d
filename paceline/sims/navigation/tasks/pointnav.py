"""PointGoal navigation: walk to a point and stop there.

Stopping within `success_distance` of the goal is success. The reward is the decrease of the distance to the goal, minus
0.01 per step, plus 2.5 times the SPL at success. Distances are geodesic.

`goal` [3] is the distance to the goal in metres and the cosine and sine of its direction (left of the agent is
positive).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium.spaces import Space
from torch import Tensor

from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.layout import PATH
from paceline.sims.navigation.scenes.geodesic import shortest_path
from paceline.sims.navigation.scenes.paths import Destinations
from paceline.sims.navigation.tasks.gps import noisy, polar, polar_space
from paceline.sims.navigation.tasks.protocol import Columns, Judgement, Marks, Streams

SLACK_REWARD = -0.01
SUCCESS_REWARD = 2.5
# Columns of the state. Together with the pose, the first three are the episode's row in the bank.
GOAL_X, GOAL_Y, START_DISTANCE, DISTANCE = range(3, 7)


class PointNav:
    """A `GoalTask`."""

    measure_names = ("success", "spl", "soft_spl", "distance_to_goal", "collisions")
    num_columns = 4

    def __init__(self, config: PointNavConfig, streams: Streams) -> None:
        self._config, self._streams = config, streams
        self.spaces: dict[str, Space] = {"goal": polar_space()}
        self.max_distance = torch.tensor(float(config.max_distance), device=streams.rows.device)
        """See `set_max_distance`."""

    def set_max_distance(self, metres: float | Tensor) -> None:
        """Limit the distance of goals in new episodes. Each scene keeps at least its nearest goal."""
        self.max_distance.copy_(metres) if isinstance(metres, Tensor) else self.max_distance.fill_(metres)
        self.scenes_changed()

    def check_scenes(self, rows: Mapping[str, Tensor]) -> None:
        """Accepts all."""

    def scenes_changed(self) -> None:
        within = self._streams.bank.episodes[:, :, 5] <= self.max_distance
        self._streams.choices.copy_(within.sum(1).clamp_(min=1))

    def begin(self, ended: Tensor, rows: Tensor) -> Tensor:
        episodes = self._streams.bank.episodes.view(-1, 6)[rows]
        return torch.cat((episodes, episodes[:, START_DISTANCE:]), 1)

    def advance(self, columns: Tensor, positions: Tensor) -> Columns:
        goal_x, goal_y, start_distance, _ = columns.unbind(1)
        return goal_x, goal_y, start_distance, self.distances(columns, positions)

    def judge(self, before: Tensor, after: Tensor, stopped: Tensor) -> Judgement:
        distance = after[:, DISTANCE]
        success = stopped & (distance <= self._config.success_distance)
        measures = path_measures(after[:, START_DISTANCE], distance, after[:, PATH], success)
        reward = (before[:, DISTANCE] - distance).add_(SLACK_REWARD)
        return Judgement(reward.add_(measures["spl"], alpha=SUCCESS_REWARD), measures)

    def observe(self, state: Tensor, rows: Tensor, noise_keys: Tensor) -> dict[str, Tensor]:
        goals = state[:, GOAL_X : GOAL_Y + 1]
        if not self._config.gps:
            return {"goal": polar(self._streams.bank.episodes.view(-1, 6)[rows, :3], goals)}
        return {"goal": polar(noisy(state[:, :3], noise_keys, self._config.gps_noise), goals)}

    def distances(self, columns: Tensor, positions: Tensor) -> Tensor:
        return self._streams.paths.lengths(positions, self._destinations(columns))

    def next_places(self, columns: Tensor, positions: Tensor) -> Tensor:
        return self._streams.paths.next_places(positions, self._destinations(columns))

    def marks(self, row: int) -> Marks:
        return point_marks(self._streams, row)

    def state_dict(self) -> dict[str, Any]:
        return {"max_distance": self.max_distance.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.set_max_distance(state["max_distance"])

    def _destinations(self, columns: Tensor) -> Destinations:
        bank, streams = self._streams.bank, self._streams
        at = bank.episode_goals.view(-1)[streams.rows]
        return Destinations(streams.scenes, bank.node_distances, at, columns[:, None, :2])


def path_measures(start: Tensor, distance: Tensor, path: Tensor, success: Tensor) -> dict[str, Tensor]:
    """The measures of a walk to a goal: from the distance at the `start` and at the end, the length of the `path` and
    the `success` (bool), [N] each. `geodesic` is the distance at the start."""
    efficiency = start / torch.maximum(start, path)
    return {
        "success": success.float(),
        "spl": efficiency * success,
        "soft_spl": efficiency * (1.0 - distance / start).clamp_(min=0.0),
        "distance_to_goal": distance,
        "geodesic": start,
    }


def point_marks(streams: Streams, row: int) -> Marks:
    """The start, the goal and the shortest path between them."""
    bank = streams.bank
    start_x, start_y, _, goal_x, goal_y, _ = bank.episodes.view(-1, 6)[row].tolist()
    start, goal = (start_x, start_y), (goal_x, goal_y)
    return Marks(start, goal, shortest_path(bank.scene(row // bank.num_episodes), start, goal))
