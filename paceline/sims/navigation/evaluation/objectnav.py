"""The evaluation of ObjectGoal navigation: its measures and baselines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.baselines import RandomStops
from paceline.sims.navigation.evaluation.evaluator import evaluator_of_task
from paceline.sims.navigation.evaluation.frontier import FrontierAgent
from paceline.sims.navigation.evaluation.oracle import Steering
from paceline.sims.navigation.evaluation.pointnav import EVALUATION as POINTNAV
from paceline.sims.navigation.evaluation.policy_episodes import PlayedEpisodes
from paceline.sims.navigation.evaluation.task_evaluation import Baseline, Bins, Measure, TaskEvaluation
from paceline.sims.navigation.layout import LEFT, RIGHT, STOP
from paceline.sims.navigation.simulator import Navigation


class ObjectOracle:
    """Knows the map: it walks to the nearest object of the category, turns to it and stops when it sees it."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        self._simulator, self._steering = simulator, Steering(simulator)
        self._task: Any = simulator.task
        self._config: Any = simulator.config
        self._half_turn = math.radians(simulator.config.turn_angle) / 2

    @torch.no_grad()
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        task, poses, columns = self._task, self._simulator.poses, self._simulator.columns
        moves = self._steering.actions(
            lambda places: task.distances(columns, places), lambda places: task.next_places(columns, places)
        )
        is_near = task.distances(columns, poses[:, :2]) <= self._config.success_distance
        x, y = (task.next_places(columns, poses[:, :2]) - poses[:, :2]).unbind(1)
        angle = torch.remainder(torch.atan2(y, x) - poses[:, 2] + math.pi, 2 * math.pi) - math.pi
        turns = torch.where(angle > 0, LEFT, RIGHT)
        moves = torch.where(is_near & (angle.abs() > self._half_turn), turns, moves)
        return torch.where(task.found(poses, columns, torch.ones_like(began)), STOP, moves)


def ways_left(played: PlayedEpisodes, number: int) -> np.ndarray:
    """[T]: the way to success after every action of episode `number` of the list.

    Paths end at footprints grown as rectangles, so they are short at corners. The straight distance is exact there.
    """
    bank, scene, route = played.bank, played.scenes[number], played.routes[number]
    wanted = bank.categories[scene] == bank.object_episodes[scene, played.numbers[number], 3].long()
    low, high = np.split(bank.objects[scene][wanted].cpu().numpy(), 2, axis=1)
    after = np.append(route.poses[1:, :2], route.poses[-1:, :2], axis=0)[:, None]  # the last action is mostly a stop
    gaps = np.linalg.norm(np.maximum(low - after, after - high).clip(0.0), axis=2).min(1)
    config: Any = played.config
    return np.maximum(route.distances, gaps - config.success_distance)


EVALUATION = TaskEvaluation(
    task="objectnav",
    measures={**POINTNAV.measures, "distance_to_goal": Measure("distance to success at the end", "{:.2f} m")},
    main=POINTNAV.main,
    rates=POINTNAV.rates,
    baselines={
        "random": Baseline(RandomStops),
        "frontier": Baseline(FrontierAgent, {"sensors": "depth", "depth_dtype": "float32", "gps": True}),
        "oracle": Baseline(ObjectOracle),
    },
    in_report={"random": "random walk", "oracle": "oracle"},
    about_baselines="The baselines play the same episodes; the oracle knows the map.",
    order="geodesic",
    order_words="distance",
    caption=POINTNAV.caption,
    bins=Bins(
        "geodesic", "geodesic distance from the start to success", edges=(0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 30.0)
    ),
    found_distance=lambda config: 0.0,  # the distance ends where the agent is near enough
    ways_left=ways_left,
    planners={"frontier": "frontier exploration", "oracle": "oracle"},
    about_planners="Frontier exploration recognises every object that it sees, and maps the floor. Its detours are "
    "about the price of not knowing where the objects are.",
)
EVALUATOR = evaluator_of_task(EVALUATION)
