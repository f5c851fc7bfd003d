"""Agents that nobody trained: the baselines that a learned one is compared with, and the oracle that bounds it.

All have `act(obs, began) -> actions` for N streams at once; `began` (bool [N]) tells where `obs` is an episode's first.
Random, forward and goal-follower know the goal's distance and stop within `STOP_DISTANCE`; otherwise the first moves
and turns at random, the second always goes forward, and the third turns towards the goal and goes there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.navigation.evaluation.map_and_plan import MapAndPlan
from paceline.sims.navigation.evaluation.oracle import Oracle
from paceline.sims.navigation.simulator import FORWARD, LEFT, RIGHT, STOP, PointNav

STOP_DISTANCE = 0.2
_AIM = math.radians(15.0)
"""The goal-follower goes forward when the goal is within this angle."""


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
    """Towards the goal, whatever is in between."""

    def __init__(self, simulator: PointNav, seed: int = 0) -> None:
        pass

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        distance, cos, sin = obs["goal"].unbind(1)
        turn = torch.where(sin > 0, LEFT, RIGHT)
        return torch.where(distance <= STOP_DISTANCE, STOP, torch.where(cos >= math.cos(_AIM), FORWARD, turn))


@dataclass(frozen=True)
class AgentKind:
    make: Callable[[PointNav, int], Agent]
    sensors: str = "blind"
    """The sensors that it looks at."""


AGENTS: dict[str, AgentKind] = {
    "random": AgentKind(RandomAgent),
    "forward": AgentKind(ForwardAgent),
    "goal-follower": AgentKind(GoalFollower),
    "map-and-plan": AgentKind(MapAndPlan, "depth"),
    "oracle": AgentKind(Oracle),
}


def agent_named(name: str) -> AgentKind:
    if name not in AGENTS:
        raise UsageError(f"agent {name!r} does not exist; allowed: {', '.join(AGENTS)}")
    return AGENTS[name]
