"""One environment in MuJoCo, for any task: its time, its randomness, its exact state and its picture."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol

import gymnasium
import mujoco
import numpy as np
from gymnasium import spaces

from paceline.envs.mujoco_rendering import cannot_render

WIDTH, HEIGHT = 480, 360
STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class StepOutcome(NamedTuple):
    """What a step has led to."""

    reward: float
    terminated: bool
    measures: dict[str, float]
    """Of the episode up to now. Those of its last step are reported."""


class MuJoCoTask(Protocol):
    """How an episode begins, what an action does, what is observed, and what is rewarded."""

    model: mujoco.MjModel
    frames: int
    """MuJoCo's time steps for each action."""
    max_episode_steps: int
    camera: str

    @property
    def observation_space(self) -> spaces.Space: ...

    @property
    def measure_names(self) -> tuple[str, ...]:
        """The keys of `StepOutcome.measures`."""

    def begin(self, data: mujoco.MjData, random: np.random.Generator) -> None:
        """Place everything for a new episode. `data` is as after `mj_resetData`."""

    def act(self, data: mujoco.MjData, action: np.ndarray, random: np.random.Generator) -> None:
        """Set the actuators. `action` is in [-1, 1]."""

    def observe(self, data: mujoco.MjData) -> Any:
        """An element of the observation space."""

    def judge(self, data: mujoco.MjData) -> StepOutcome:
        """Called once after every action."""

    def get_state(self) -> Any:
        """What the task remembers of an episode beside MuJoCo's state."""

    def set_state(self, state: Any) -> None: ...


class MuJoCoEnv(gymnasium.Env):
    """A task as a Gymnasium environment. A seed decides everything that is random.

    An episode that reaches its limit is truncated. A simulation that diverges ends the episode without a reward, as
    MuJoCo resets it.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 - as Gymnasium declares it

    def __init__(
        self, task: MuJoCoTask, render_mode: str | None = "rgb_array", max_episode_steps: int | None = None
    ) -> None:
        """`max_episode_steps` replaces that of the task."""
        self.task, self.render_mode = task, render_mode
        self._max_steps = max_episode_steps or task.max_episode_steps
        self.model, self.data = task.model, mujoco.MjData(task.model)
        self.metadata = {**self.metadata, "render_fps": round(1.0 / (task.frames * task.model.opt.timestep))}
        self.observation_space, self.measure_names = task.observation_space, task.measure_names
        self.action_space = spaces.Box(-1.0, 1.0, (task.model.nu,), np.float32)
        self._steps = 0
        self._renderer: mujoco.Renderer | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        mujoco.mj_resetData(self.model, self.data)
        self._steps = 0
        self.task.begin(self.data, self.np_random)
        mujoco.mj_forward(self.model, self.data)
        return self.task.observe(self.data), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        action = np.asarray(action, np.float64)
        if not np.isfinite(action).all():
            raise ValueError(f"the action {action} is not finite")
        self.task.act(self.data, np.clip(action, -1.0, 1.0), self.np_random)
        mujoco.mj_step(self.model, self.data, self.task.frames)
        # MuJoCo's step ends with contacts and positions of the moment before its last time step.
        mujoco.mj_forward(self.model, self.data)
        self._steps += 1
        outcome = self.task.judge(self.data)
        if self._has_diverged():
            outcome = outcome._replace(reward=0.0, terminated=True)
        truncated = not outcome.terminated and self._steps >= self._max_steps
        observation = self.task.observe(self.data)
        return observation, outcome.reward, outcome.terminated, truncated, dict(outcome.measures)

    def _has_diverged(self) -> bool:
        """Whether MuJoCo has met a number that is not finite or too large since the episode began."""
        kinds = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)
        return any(self.data.warning[kind].number for kind in kinds) or not math.isfinite(self.data.time)

    def get_state(self) -> dict[str, Any]:
        physics = np.empty(mujoco.mj_stateSize(self.model, STATE))
        mujoco.mj_getState(self.model, self.data, physics, STATE)
        return {
            "physics": physics,
            "steps": self._steps,
            "random": self.np_random.bit_generator.state,
            "task": self.task.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        mujoco.mj_resetData(self.model, self.data)
        mujoco.mj_setState(self.model, self.data, state["physics"], STATE)
        self._steps = state["steps"]
        self.np_random.bit_generator.state = state["random"]
        self.task.set_state(state["task"])
        mujoco.mj_forward(self.model, self.data)

    def render(self) -> np.ndarray:
        if self._renderer is None:
            self._renderer = _renderer(self.model)
        self._renderer.update_scene(self.data, camera=self.task.camera)
        return self._renderer.render()

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None


def _renderer(model: mujoco.MjModel) -> mujoco.Renderer:
    try:
        return mujoco.Renderer(model, HEIGHT, WIDTH)
    except Exception as error:
        raise cannot_render(error) from error
