"""The tasks of the hand as a Gymnasium environment."""

from __future__ import annotations

from paceline.errors import UsageError, closest
from paceline.sims.control.hand.tasks import TASKS
from paceline.sims.control.mujoco_env import MuJoCoEnv


class HandEnv(MuJoCoEnv):
    """A task by its name."""

    def __init__(
        self, task: str = "catch", render_mode: str | None = "rgb_array", *, max_steps: int | None = None
    ) -> None:
        """`max_steps` of an episode; None: as many as the task has."""
        if task not in TASKS:
            raise UsageError(f"task {task!r} does not exist{closest(task, TASKS)}; allowed: {', '.join(TASKS)}")
        super().__init__(TASKS[task](), render_mode, max_steps)
