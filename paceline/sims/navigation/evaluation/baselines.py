"""Agents without training: baselines for a learned agent, and the oracle as an upper bound.

All have `act(obs, began) -> actions` for N streams; `began` (bool [N]) marks the first observations of episodes.
Random, forward and goal-follower stop within `STOP_DISTANCE` of the goal, whose distance they observe.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.evaluation.episode_list import fixed_episodes, play
from paceline.sims.navigation.evaluation.map_and_plan import MapAndPlan
from paceline.sims.navigation.evaluation.measures import summarize
from paceline.sims.navigation.evaluation.oracle import Oracle
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import FORWARD, LEFT, RIGHT, STOP, PointNav, load_bank

STOP_DISTANCE = 0.2
_AIM = math.radians(15.0)
"""The goal-follower goes forward if the goal is within this angle."""


class Agent(Protocol):
    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor: ...


class RandomAgent:
    """Forward, left or right with equal probability."""

    def __init__(self, simulator: PointNav, seed: int = 0) -> None:
        self._generator = torch.Generator(simulator.device).manual_seed(seed)

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        goal = obs["goal"]
        moves = torch.randint(FORWARD, RIGHT + 1, (len(goal),), generator=self._generator, device=goal.device)
        return torch.where(goal[:, 0] <= STOP_DISTANCE, STOP, moves)


class ForwardAgent:
    """Always forward."""

    def __init__(self, simulator: PointNav, seed: int = 0) -> None:
        pass

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        return torch.where(obs["goal"][:, 0] <= STOP_DISTANCE, STOP, FORWARD)


class GoalFollower:
    """Straight towards the goal, through obstacles or not."""

    def __init__(self, simulator: PointNav, seed: int = 0) -> None:
        pass

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        distance, cos, sin = obs["goal"].unbind(1)
        turn = torch.where(sin > 0, LEFT, RIGHT)
        return torch.where(distance <= STOP_DISTANCE, STOP, torch.where(cos >= math.cos(_AIM), FORWARD, turn))


@dataclass(frozen=True)
class Baseline:
    make: Callable[[PointNav, int], Agent]
    sensors: str = "blind"
    """The sensors that it uses."""


BASELINES: dict[str, Baseline] = {
    "random": Baseline(RandomAgent),
    "forward": Baseline(ForwardAgent),
    "goal-follower": Baseline(GoalFollower),
    "map-and-plan": Baseline(MapAndPlan, "depth"),
    "oracle": Baseline(Oracle),
}


def play_baseline(
    name: str,
    config: PointNavConfig,
    episodes: int | None = None,
    *,
    num_envs: int = 32,
    seed: int = 0,
    bank: SceneBank | None = None,
) -> dict[str, Any]:
    """Play the first `episodes` of the list that `config` names, or all: the summary of their measures.

    The baseline's own sensors replace those of `config`. `bank` replaces its scenes.
    """
    if name not in BASELINES:
        raise UsageError(f"agent {name!r} does not exist; allowed: {', '.join(BASELINES)}")
    kind = BASELINES[name]
    config = replace(config, sensors=kind.sensors, gps=True)
    bank = bank or load_bank(config)
    scenes, numbers = fixed_episodes(bank, episodes)
    simulator = PointNav(min(num_envs, len(scenes)), "cpu", config, bank=bank)
    measures = play(simulator, kind.make(simulator, seed).act, scenes, numbers)
    about = {"agent": name, "env": "pointnav", "tier": config.tier, "split": config.split, "scenes": bank.num_scenes}
    return {**about, **summarize(measures)}
