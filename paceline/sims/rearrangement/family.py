"""The environment ids of rearrangement: `rearrange:pick`, or `rearrange:pick?tier=full&resolution=128`.

PyTorch is imported only when an environment is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.errors import UsageError, closest
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.tasks.table import SKILLS, task_config


@dataclass(frozen=True)
class MakeRobots:
    """Makes N environments on a device, for the `tensor` pool."""

    task: str
    config: RearrangementConfig

    def __call__(self, num_envs: int, device: str = "cpu") -> Any:
        from paceline.sims.rearrangement.simulator import Rearrangement

        return Rearrangement(num_envs, device, self.task, self.config)


@dataclass(frozen=True)
class MakeRobot:
    """Makes one environment, for the other pools."""

    task: str
    config: RearrangementConfig

    def __call__(self, env_index: int) -> Any:
        from paceline.sims.rearrangement.env import RearrangementEnv

        return RearrangementEnv(self.task, render_mode="rgb_array", **self.config.options())


def names() -> Iterable[str]:
    return SKILLS


def resolve(env_id: EnvId) -> Factory:
    task, config = parsed(env_id)
    label = str(env_id)
    return Factory(
        make=MakeRobots(task, config),
        backend="tensor",
        label=label,
        single=Factory(make=MakeRobot(task, config), label=label),
    )


def parsed(env_id: EnvId) -> tuple[str, RearrangementConfig]:
    """The task and the options of an id."""
    if env_id.name not in SKILLS:
        problem = f"task {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, SKILLS)}"
        raise UsageError(f"{problem}; allowed: {', '.join(SKILLS)}")
    return env_id.name, task_config(env_id.name, dict(env_id.options), str(env_id))
