"""Agents without training: random actions, and the oracle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.navigation.evaluation.task_evaluation import Agent
from paceline.sims.rearrangement.evaluation.oracle.agent import RobotOracle
from paceline.sims.rearrangement.evaluation.oracle.scripts import SCRIPTS
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.table import SKILLS


class RandomMotions:
    """Every number of an action is uniform in [-1, 1]."""

    def __init__(self, simulator: Rearrangement, seed: int = 0) -> None:
        self._size = simulator.actions.size
        self._generator = torch.Generator(simulator.device).manual_seed(seed)

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        uniform = torch.rand(len(began), self._size, generator=self._generator, device=began.device)
        return uniform * 2.0 - 1.0


@dataclass(frozen=True)
class RobotBaseline:
    make: Callable[[Rearrangement, int], Agent]
    """From the simulator and a seed."""
    tasks: tuple[str, ...]
    """Those that it can play."""

    def check(self, task: str) -> None:
        if task not in self.tasks:
            raise UsageError(f"this agent does not play {task}; allowed: {', '.join(self.tasks)}")


BASELINES = {
    "random": RobotBaseline(RandomMotions, tuple(SKILLS)),
    "oracle": RobotBaseline(RobotOracle, tuple(SCRIPTS)),
}
"""By the names that --agent takes."""
