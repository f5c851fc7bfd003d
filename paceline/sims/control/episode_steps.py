"""The option `max_episode_steps` of control tasks."""

from __future__ import annotations

from paceline.envs.ids import EnvId
from paceline.errors import UsageError

OPTION = "max_episode_steps"


def episode_steps(env_id: EnvId) -> int | None:
    """The largest number of steps of an episode. None: as many as the task has."""
    steps = env_id.options.get(OPTION)
    if steps is not None and (type(steps) is not int or steps < 1):
        raise UsageError(f"{OPTION} of {str(env_id)!r} is {steps}; allowed: a whole number from 1")
    return steps
