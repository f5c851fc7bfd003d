"""The evaluation of PointGoal navigation: its measures and baselines.

Random, forward and goal-follower stop within `STOP_DISTANCE` of the goal, whose distance they observe, or within
`success_distance` if that is less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.baselines import AlwaysForward, RandomWalk
from paceline.sims.navigation.evaluation.evaluator import evaluator_of_task
from paceline.sims.navigation.evaluation.map_and_plan import MapAndPlan
from paceline.sims.navigation.evaluation.oracle import Oracle
from paceline.sims.navigation.evaluation.task_evaluation import Agent, Baseline, Bins, Measure, TaskEvaluation
from paceline.sims.navigation.layout import FORWARD, LEFT, RIGHT, STOP
from paceline.sims.navigation.simulator import Navigation

STOP_DISTANCE = 0.2
_AIM = math.radians(15.0)
"""The goal-follower goes forward if the goal is within this angle."""


class StopsAtTheGoal:
    """An agent that stops when it observes that it is at the goal."""

    def __init__(self, walk: Agent, simulator: Navigation) -> None:
        config: Any = simulator.config
        self._walk, self._distance = walk, min(STOP_DISTANCE, config.success_distance)

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        return torch.where(obs["goal"][:, 0] <= self._distance, STOP, self._walk.act(obs, began))


class GoalFollower:
    """Straight towards the goal, through obstacles or not."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        pass

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        _, cos, sin = obs["goal"].unbind(1)
        return torch.where(cos >= math.cos(_AIM), FORWARD, torch.where(sin > 0, LEFT, RIGHT))


def _stopping(make: Callable[[Navigation, int], Agent]) -> Baseline:
    return Baseline(
        lambda simulator, seed: StopsAtTheGoal(make(simulator, seed), simulator), {"sensors": "blind", "gps": True}
    )


def caption(measures: Mapping[str, float]) -> tuple[str, str]:
    """The result of a walk to a goal, and how it went."""
    result = f"SPL {measures['spl']:.2f}." if measures["success"] else "Failed."
    steps = f"{measures['steps']:.0f} step{'s' if measures['steps'] > 1 else ''}"
    text = f"{measures['geodesic']:.1f} m to go, {measures['path_length']:.1f} m walked in {steps}"
    if not measures["success"]:
        text += f"; {measures['distance_to_goal']:.1f} m from the goal at the end"
    return result, f"{text}."


EVALUATION = TaskEvaluation(
    task="pointnav",
    measures={
        "success": Measure("success", "{:.1%}"),
        "spl": Measure("SPL"),
        "soft_spl": Measure("SoftSPL"),
        "distance_to_goal": Measure("distance to goal at the end", "{:.2f} m"),
        "collisions": Measure("collisions an episode", "{:.1f}"),
    },
    main=("success", "spl"),
    rates=("success", "spl"),
    baselines={
        "random": _stopping(RandomWalk),
        "forward": _stopping(AlwaysForward),
        "goal-follower": _stopping(GoalFollower),
        "map-and-plan": Baseline(MapAndPlan, {"sensors": "depth", "gps": True}),
        "oracle": Baseline(Oracle),
    },
    in_report={"random": "random walk", "forward": "always forward", "goal-follower": "goal follower"},
    about_baselines="The baselines know the goal's distance and direction, and play the same episodes.",
    order="geodesic",
    order_words="distance",
    caption=caption,
    bins=Bins("geodesic", "geodesic distance from start to goal"),
    found_distance=lambda config: config.success_distance,
    planners={"map-and-plan": "map-and-plan", "oracle": "oracle"},
    about_planners="Map-and-plan sees depth images, remembers every obstacle and takes unseen space as free. Its "
    "detours are about the price of not knowing the map.",
)
EVALUATOR = evaluator_of_task(EVALUATION)
