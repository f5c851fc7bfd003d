"""The environment ids of the control tasks: `hand:catch` and so on. MuJoCo is imported when an environment is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.envs.factory import Factory, check_options, needs
from paceline.envs.ids import EnvId
from paceline.envs.mujoco_rendering import choose_renderer
from paceline.errors import UsageError, closest
from paceline.sims.control.episode_steps import OPTION, episode_steps

HAND = ("catch", "pick_up_and_orient", "rotate_in_hand")


@dataclass(frozen=True)
class MakeHand:
    """Makes one environment."""

    task: str
    max_steps: int | None

    def __call__(self, env_index: int) -> Any:
        choose_renderer()
        with needs("hand", extra="mujoco"):
            from paceline.sims.control.hand.env import HandEnv
        return HandEnv(self.task, max_steps=self.max_steps)


def names() -> Iterable[str]:
    return HAND


def resolve(env_id: EnvId) -> Factory:
    check_options(env_id, [OPTION])
    if env_id.name not in HAND:
        raise UsageError(
            f"task {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, HAND)}; "
            f"allowed: {', '.join(HAND)}"
        )
    return Factory(make=MakeHand(env_id.name, episode_steps(env_id)), label=str(env_id))
