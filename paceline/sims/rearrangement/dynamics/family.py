"""The environment ids of rearrangement in MuJoCo: `rearrange_mujoco:pick?resolution=64`.

MuJoCo and PyTorch are imported when an environment is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.envs.factory import Factory, needs
from paceline.envs.ids import EnvId
from paceline.envs.mujoco_rendering import choose_renderer
from paceline.errors import UsageError, closest
from paceline.sims.rearrangement.dynamics.config import FAMILY, TASKS, DynamicsConfig


@dataclass(frozen=True)
class MakeDynamicRobot:
    """Makes one environment."""

    task: str
    config: DynamicsConfig

    def __call__(self, env_index: int) -> Any:
        choose_renderer()
        with needs(FAMILY, extra="mujoco"):
            from paceline.sims.rearrangement.dynamics.env import DynamicRearrangementEnv
        return DynamicRearrangementEnv(self.task, render_mode="rgb_array", **self.config.options())


def names() -> Iterable[str]:
    return TASKS


def resolve(env_id: EnvId) -> Factory:
    if env_id.name not in TASKS:
        problem = f"task {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, TASKS)}"
        raise UsageError(f"{problem}; allowed: {', '.join(TASKS)}")
    config = DynamicsConfig.of_options(dict(env_id.options), str(env_id))
    return Factory(make=MakeDynamicRobot(env_id.name, config), label=str(env_id))
