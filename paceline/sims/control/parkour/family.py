"""The environment ids of parkour: `parkour:walker?terrain=gaps&difficulty=0.5`. MuJoCo is imported when an environment
is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.envs.factory import Factory, check_options, needs
from paceline.envs.ids import EnvId
from paceline.envs.mujoco_rendering import choose_renderer
from paceline.sims.control.episode_steps import OPTION, episode_steps
from paceline.sims.control.parkour.limits import ALL, LIMITS, check


@dataclass(frozen=True)
class MakeParkour:
    """Makes one environment."""

    body: str
    terrain: str
    difficulty: float
    max_steps: int | None

    def __call__(self, env_index: int) -> Any:
        choose_renderer()
        with needs("parkour", extra="mujoco"):
            from paceline.sims.control.parkour.env import ParkourEnv
        return ParkourEnv(self.body, self.terrain, self.difficulty, max_steps=self.max_steps)


def names() -> Iterable[str]:
    return LIMITS


def resolve(env_id: EnvId) -> Factory:
    check_options(env_id, ["terrain", "difficulty", OPTION])
    terrain, difficulty = env_id.options.get("terrain", ALL), env_id.options.get("difficulty", 1.0)
    check(env_id.name, terrain, difficulty)
    return Factory(make=MakeParkour(env_id.name, terrain, difficulty, episode_steps(env_id)), label=str(env_id))
