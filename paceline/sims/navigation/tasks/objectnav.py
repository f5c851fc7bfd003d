"""ObjectGoal navigation: find an object of a category, for example a bed, and stop in front of it.

Success is a stop at most `success_distance` from the footprint of such an object that is in view: at least one of
`VIEW` x `VIEW` rays, evenly spread over the camera's image, meets the object before anything else.

The reward is the decrease of the distance to the nearest object of the category, minus 0.001 per step, plus 2.5 at
success. The distance is geodesic, up to where the agent is within `success_distance`.

`category` is one-hot. `gps` [4] is the position ahead and to the left of the start in metres, and the cosine and sine
of the heading relative to the first one.

Legend: N streams, M objects, C categories.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Space
from torch import Tensor

from paceline.sims.navigation.config import ObjectNavConfig
from paceline.sims.navigation.layout import NUM_POSE, PATH
from paceline.sims.navigation.rendering.render import Camera, View
from paceline.sims.navigation.rendering.trace import trace
from paceline.sims.navigation.scenes.furniture import CATEGORIES
from paceline.sims.navigation.scenes.geodesic import Graph, shortest_path, touching
from paceline.sims.navigation.scenes.geometry import NOWHERE
from paceline.sims.navigation.scenes.paths import Destinations
from paceline.sims.navigation.scenes.scene import AGENT_RADIUS
from paceline.sims.navigation.tasks.gps import MAX_DISTANCE, noisy
from paceline.sims.navigation.tasks.pointnav import path_measures
from paceline.sims.navigation.tasks.protocol import Columns, Judgement, Marks, Streams

SLACK_REWARD = -0.001
SUCCESS_REWARD = 2.5
VIEW = 24
# Columns of the state. The distances are up to where the agent is within `success_distance`.
CATEGORY, START_DISTANCE, DISTANCE = range(3, 6)


class ObjectNav:
    """A `GoalTask`."""

    measure_names = ("success", "spl", "soft_spl", "distance_to_goal", "collisions")
    num_columns = 3

    def __init__(self, config: ObjectNavConfig, streams: Streams) -> None:
        self._config, self._streams = config, streams
        num, device = len(streams.rows), streams.rows.device
        self.spaces: dict[str, Space] = {"category": Box(0, 1, (len(CATEGORIES),), np.float32)}
        if config.gps:
            high = np.array([MAX_DISTANCE, MAX_DISTANCE, 1, 1], np.float32)
            self.spaces["gps"] = Box(-high, high, dtype=np.float32)
        self._one_hot = torch.eye(len(CATEGORIES), device=device)
        self._nowhere = torch.tensor(NOWHERE[:2], device=device)
        self._camera = Camera(VIEW, device)
        nothing = torch.zeros(num, VIEW, VIEW, device=device)
        self._blank = View(nothing, nothing.long())
        self._most = streams.bank.limits.max_parts

    def check_scenes(self, rows: Mapping[str, Tensor]) -> None:
        """Accepts all."""

    def scenes_changed(self) -> None:
        bank = self._streams.bank
        if bank.device.type == "cpu":  # less padding than the tier allows
            self._most = max(1, int((bank.categories >= 0).sum(1).amax()))
        self._streams.choices.copy_((bank.object_episodes[:, 0, 3] >= 0) * bank.num_episodes)

    def begin(self, ended: Tensor, rows: Tensor) -> Tensor:
        episodes = self._streams.bank.object_episodes.view(-1, 5)[rows]
        distances = self._to_success(episodes[:, 4:])
        return torch.cat((episodes[:, :4], distances, distances), 1)

    def advance(self, columns: Tensor, positions: Tensor) -> Columns:
        category, start_distance, _ = columns.unbind(1)
        return category, start_distance, self._to_success(self.distances(columns, positions))

    def judge(self, before: Tensor, after: Tensor, stopped: Tensor) -> Judgement:
        start_distance, distance = after[:, START_DISTANCE], after[:, DISTANCE]
        success = self.found(after[:, :NUM_POSE], after[:, NUM_POSE:PATH], stopped)
        measures = path_measures(start_distance, distance, after[:, PATH], success)
        reward = (before[:, DISTANCE] - distance).add_(SLACK_REWARD)
        return Judgement(reward.add_(measures["success"], alpha=SUCCESS_REWARD), measures)

    def observe(self, state: Tensor, rows: Tensor, noise_keys: Tensor) -> dict[str, Tensor]:
        seen = {"category": self._one_hot[state[:, CATEGORY].long()]}
        if not self._config.gps:
            return seen
        start = self._streams.bank.object_episodes.view(-1, 5)[rows, :3]
        x, y, turned = (noisy(state[:, :3], noise_keys, self._config.gps_noise) - start).unbind(1)
        cos, sin = start[:, 2].cos(), start[:, 2].sin()
        gps = torch.stack((x * cos + y * sin, y * cos - x * sin, turned.cos(), turned.sin()), 1)
        return {**seen, "gps": gps}

    def distances(self, columns: Tensor, positions: Tensor) -> Tensor:
        """See `GoalTask`; until the agent touches an object."""
        return self._streams.paths.lengths(positions, self._destinations(columns, positions))

    def next_places(self, columns: Tensor, positions: Tensor) -> Tensor:
        return self._streams.paths.next_places(positions, self._destinations(columns, positions))

    def wanted(self, columns: Tensor) -> Tensor:
        """bool [N, M]: which objects of the scene have the category."""
        return self._streams.bank.categories[self._streams.scenes] == columns[:, :1].long()

    def gaps(self, positions: Tensor) -> Tensor:
        """[N, M]: the straight distances from `positions` [N, 2] to the footprints of all objects."""
        rects = self._streams.bank.objects[self._streams.scenes]
        here = positions[:, None]
        return torch.maximum(rects[..., :2] - here, here - rects[..., 2:]).clamp_(min=0.0).norm(dim=2)

    def in_view(self, poses: Tensor, only: Tensor) -> Tensor:
        """bool [N, M]: which objects are in view from `poses` [N, 3], for the streams in `only` (bool [N])."""
        bank, scenes = self._streams.bank, self._streams.scenes
        most = bank.limits.max_parts
        if poses.is_cuda:
            view = trace(bank, self._camera, scenes, poses, True, only=only, otherwise=self._blank)
            return _objects_of(bank.box_objects[scenes], view, most)
        result = torch.zeros(len(poses), most, dtype=torch.bool)
        rows = only.nonzero()[:, 0]  # on the host this does not wait for a device
        if len(rows):
            view = trace(bank, self._camera, scenes[rows], poses[rows], True)
            result[rows] = _objects_of(bank.box_objects[scenes[rows]], view, most)
        return result

    def found(self, poses: Tensor, columns: Tensor, stopped: Tensor) -> Tensor:
        """bool [N]: which of the `stopped` (bool [N]) agents are at `poses` [N, 3] that count as success."""
        if not stopped.is_cuda and not stopped.any():  # on the host this does not wait for a device
            return stopped.clone()
        near = self.gaps(poses[:, :2]) <= self._config.success_distance
        return (near & self.wanted(columns) & self.in_view(poses, stopped)).any(1) & stopped

    def marks(self, row: int) -> Marks:
        bank = self._streams.bank
        number = row // bank.num_episodes
        x, y, _, category, _ = bank.object_episodes.view(-1, 5)[row].tolist()
        scene = bank.scene(number)
        rects = bank.objects[number][bank.categories[number] == int(category)].double().cpu().numpy()
        end = _nearest_end(Graph.of(scene), np.array([x, y]), rects)
        return Marks((x, y), end, shortest_path(scene, (x, y), end))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass

    def _to_success(self, distances: Tensor) -> Tensor:
        """From the distance of touching an object to that of being near enough."""
        return (distances - (self._config.success_distance - AGENT_RADIUS)).clamp_(min=0.0)

    def _destinations(self, columns: Tensor, positions: Tensor) -> Destinations:
        streams, most = self._streams, self._most
        bank, scenes = streams.bank, streams.scenes
        ends = touching(positions, bank.objects[:, :most][scenes])
        ends = torch.where(self.wanted(columns)[:, :most, None], ends, self._nowhere)
        return Destinations(scenes, bank.object_nodes, columns[:, 0].long(), ends)


def _objects_of(box_objects: Tensor, view: View, most: int) -> Tensor:
    """bool [N, M]: the objects that a view shows, from those of all boxes (`SceneBank.box_objects`)."""
    assert view.surfaces is not None
    num = len(box_objects)
    objects = box_objects.gather(1, (view.surfaces // 3).view(num, -1))
    seen = torch.zeros(num, most + 1, dtype=torch.bool, device=box_objects.device)
    return seen.scatter_(1, objects, True)[:, :most]


def _nearest_end(graph: Graph, start: np.ndarray, rects: np.ndarray) -> tuple[float, float]:
    """Where the shortest path from `start` [2] ends that touches one of `rects` [M, 4]."""
    places = np.concatenate([start[None], graph.nodes])
    so_far = graph.between_points(start[None], places)[0]
    last, rect = np.unravel_index((so_far[:, None] + graph.to_touch(places, rects)).argmin(), (len(places), len(rects)))
    end = touching(torch.from_numpy(places[last][None]), torch.from_numpy(rects[rect][None, None]))
    x, y = end[0, 0].tolist()
    return x, y
