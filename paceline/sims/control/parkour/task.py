"""Run as far as possible: rewards, ends and measures of parkour."""

from __future__ import annotations

import mujoco
import numpy as np
from gymnasium import spaces

from paceline.sims.control.mujoco_env import StepOutcome
from paceline.sims.control.parkour.bodies import BODIES, FALLEN, HIGHEST, LOWEST, REACH
from paceline.sims.control.parkour.boxes import Surfaces
from paceline.sims.control.parkour.course import build
from paceline.sims.control.parkour.limits import ALL, check

SPEED = 3.0
"""Metres per second. Faster bodies get no higher reward."""


class Parkour:
    """The reward is the torso's speed along the course, as a share of `SPEED` and between -1 and 1."""

    frames, max_episode_steps, camera = 4, 1000, "side"
    measure_names = ("obstacles", "distance")

    def __init__(self, body: str = "walker", terrain: str = ALL, difficulty: float = 1.0) -> None:
        check(body, terrain, difficulty)
        self.body = BODIES[body]()
        self.model = self.body.model
        self._kinds = self.body.limits.kinds if terrain == ALL else (terrain,)
        self._difficulty = difficulty
        self._seconds = self.frames * self.model.opt.timestep
        self._ends, self._start, self._x, self._farthest = np.zeros(0), 0.0, 0.0, 0.0

    @property
    def observation_space(self) -> spaces.Dict:
        felt = spaces.Box(-np.inf, np.inf, (self.body.num_felt,), np.float32)
        seen = spaces.Box(LOWEST, HIGHEST, (self.body.num_seen,), np.float32)
        return spaces.Dict({"proprioception": felt, "terrain": seen})

    def begin(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        course = build(self.body.boxes, self.body.limits, self._kinds, self._difficulty, random)
        data.mocap_pos[:] = course.centres
        self.body.stand(data, random)
        mujoco.mj_kinematics(self.model, data)
        self._ends = course.ends
        self._start = self._x = self._farthest = self._position(data)

    def act(self, data: mujoco.MjData, action: np.ndarray, random: np.random.Generator) -> None:
        data.ctrl[:] = action

    def observe(self, data: mujoco.MjData) -> dict[str, np.ndarray]:
        surfaces = self._surfaces(data)
        parts = {"proprioception": self.body.feel(data, surfaces), "terrain": self.body.see(data, surfaces)}
        return {name: np.concatenate(part).astype(np.float32) for name, part in parts.items()}

    def judge(self, data: mujoco.MjData) -> StepOutcome:
        before, self._x = self._x, self._position(data)
        self._farthest = max(self._farthest, self._x)
        reward = float(np.clip((self._x - before) / (self._seconds * SPEED), -1.0, 1.0))
        obstacles = np.searchsorted(self._ends, self._farthest)
        measures = {"obstacles": float(obstacles), "distance": self._x - self._start}
        return StepOutcome(reward, self._has_fallen(data), measures)

    def _has_fallen(self, data: mujoco.MjData) -> bool:
        """Whether the torso is too low above the floor. A gap has no floor: there the level of the ground counts."""
        position = self.body.position(data)
        floor = self._surfaces(data).floors(position[None])[0]
        height = position[2] - (floor if np.isfinite(floor) else 0.0)
        return bool(height < FALLEN)

    def _surfaces(self, data: mujoco.MjData) -> Surfaces:
        return self.body.boxes.near(data.mocap_pos, self._position(data), REACH)

    def _position(self, data: mujoco.MjData) -> float:
        return float(self.body.position(data)[0])

    def get_state(self) -> tuple[np.ndarray, float, float, float]:
        return self._ends, self._start, self._x, self._farthest

    def set_state(self, state: tuple[np.ndarray, float, float, float]) -> None:
        self._ends, self._start, self._x, self._farthest = state
