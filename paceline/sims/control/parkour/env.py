"""Parkour as a Gymnasium environment."""

from __future__ import annotations

from paceline.sims.control.mujoco_env import MuJoCoEnv
from paceline.sims.control.parkour.limits import ALL
from paceline.sims.control.parkour.task import Parkour


class ParkourEnv(MuJoCoEnv):
    """A body by its name, on courses with obstacles of one kind or of all kinds."""

    def __init__(
        self,
        body: str = "walker",
        terrain: str = ALL,
        difficulty: float = 1.0,
        render_mode: str | None = "rgb_array",
        *,
        max_steps: int | None = None,
    ) -> None:
        """`max_steps` of an episode; None: as many as the task has."""
        super().__init__(Parkour(body, terrain, difficulty), render_mode, max_steps)
