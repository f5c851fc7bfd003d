"""Tasks of dm_control as Gymnasium environments: the control suite and the Jaco arm, as vectors or from pixels."""

from __future__ import annotations

import logging
import os
import warnings
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from paceline.envs.factory import needs
from paceline.envs.mujoco_rendering import OFF, cannot_render, choose_renderer
from paceline.errors import UsageError

MANIPULATION = "manipulation"
"""The domain of the Jaco arm's tasks. They are no part of the suite."""


def has_images(task: str) -> bool:
    """Whether a task of the arm has images among its observations."""
    return task.endswith("_vision")


def suite() -> Any:
    """dm_control's module of the control suite."""
    _import_renderer()
    with needs("dmc"):
        from dm_control import suite
    return suite


def manipulation() -> Any:
    """dm_control's module of the Jaco arm."""
    _import_renderer()
    with needs("dmc"):
        from dm_control import manipulation
    return manipulation


def _import_renderer() -> None:
    """Import what dm_control renders with. Where the chosen renderer does not work, tasks without images still do."""
    is_chosen_here = choose_renderer()
    absl_log = logging.getLogger("absl")
    if _is_for_users not in absl_log.filters:
        absl_log.addFilter(_is_for_users)
    with needs("dmc"):
        import dm_control
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*DISPLAY")  # of GLFW, where the user has chosen it
            import dm_control._render  # noqa: F401
    except Exception as error:
        if not is_chosen_here:
            raise cannot_render(error) from error
        os.environ["MUJOCO_GL"] = OFF


def _is_for_users(record: logging.LogRecord) -> bool:
    """The suite's own models use deprecated attributes of MuJoCo, and users cannot do anything about it."""
    return record.levelno >= logging.WARNING and "compiler attribute" not in record.getMessage()


class ControlTask(gymnasium.Env):
    """One task. Observations are float32 vectors and uint8 images by dm_control's names, or with `flat` one vector.

    The end of an episode is a termination if the task's discount is 0, and otherwise a truncation. Most tasks end only
    by their time limit.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it
    render_mode = "rgb_array"

    def __init__(self, domain: str, task: str, frameskip: int = 1, flat: bool = False) -> None:
        self._is_suite = domain != MANIPULATION
        self._env = _load_suite(domain, task) if self._is_suite else _load_manipulation(task)
        self.metadata = {**self.metadata, "render_fps": round(1.0 / self._env.control_timestep())}
        self._frameskip, self._flat = frameskip, flat
        action = self._env.action_spec()
        low, high = (
            np.broadcast_to(bound, action.shape).astype(np.float32) for bound in (action.minimum, action.maximum)
        )
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        parts: dict[str, Any] = {key: _space(spec) for key, spec in self._env.observation_spec().items()}
        self.observation_space = _box(sum(box.shape[0] for box in parts.values())) if flat else spaces.Dict(parts)

    @property
    def physics(self) -> Any:
        return self._env.physics

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            random = self._env.task.random if self._is_suite else self._env.random_state
            random.seed(seed % 2**32)
        return self._observe(self._env.reset()), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        action = np.asarray(action, np.float64)
        reward = 0.0
        for _ in range(self._frameskip):
            timestep = self._env.step(action)
            reward += timestep.reward or 0.0
            if timestep.last():
                break
        terminated = timestep.last() and timestep.discount == 0.0
        return self._observe(timestep), float(reward), terminated, timestep.last() and not terminated, {}

    def render(self) -> np.ndarray:
        return self.physics.render(height=480, width=640, camera_id=0)

    def close(self) -> None:
        self._env.close()

    def _observe(self, timestep: Any) -> Any:
        parts = {key: _shown(value) for key, value in timestep.observation.items()}
        return np.concatenate(list(parts.values())) if self._flat else parts


class SuiteTask(ControlTask):
    """A task of the suite. Its state can be saved, unlike that of a task of the arm."""

    def __init__(self, domain: str, task: str, frameskip: int = 1, flat: bool = False) -> None:
        super().__init__(domain, task, frameskip, flat)
        from paceline.envs.dmc_state import SuiteState  # needs MuJoCo

        self._state = SuiteState(self._env)

    def get_state(self) -> dict[str, Any]:
        return self._state.get(self._env)

    def set_state(self, state: dict[str, Any]) -> None:
        self._state.set(self._env, state)


@dataclass(frozen=True, kw_only=True)
class PixelSettings:
    """What a policy sees of a task."""

    resolution: tuple[int, int]
    """Width and height."""
    stack: int
    """Frames of an observation, oldest first. All are the first frame at the start of an episode."""
    camera: int
    """The number of a camera of the model."""
    shadows: bool
    """Whether bodies cast shadows. They take most of the time where a CPU renders."""


class PixelTask(gymnasium.Wrapper):
    """A task whose observations are only what a camera sees: uint8 [stack * 3, height, width]."""

    def __init__(self, env: ControlTask, settings: PixelSettings) -> None:
        super().__init__(env)
        self._settings, cameras = settings, env.physics.model.ncam
        if settings.camera >= cameras:
            raise UsageError(f"camera {settings.camera} does not exist; allowed: 0 to {cameras - 1}")
        width, height = settings.resolution
        self.observation_space = spaces.Box(0, 255, (settings.stack * 3, height, width), np.uint8)
        self._frames = self._repeated()  # a missing renderer is found before the first step

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        _, info = self.env.reset(seed=seed, options=options)
        self._frames = self._repeated()
        return self._frames, info

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict]:
        _, reward, terminated, truncated, info = self.env.step(action)
        self._frames = np.concatenate([self._frames[3:], self._frame()])
        return self._frames, reward, terminated, truncated, info

    def _repeated(self) -> np.ndarray:
        return np.tile(self._frame(), (self._settings.stack, 1, 1))

    def _frame(self) -> np.ndarray:
        """[3, height, width]: what the camera sees now."""
        settings, physics = self._settings, self.env.unwrapped.physics  # type: ignore[attr-defined]
        return _render(physics, settings.resolution, settings.camera, settings.shadows).transpose(2, 0, 1)


def _render(physics: Any, resolution: tuple[int, int], camera: int, shadows: bool) -> np.ndarray:
    """[height, width, 3]."""
    width, height = resolution
    flags = None if shadows else {"shadow": False}
    try:
        return physics.render(height, width, camera_id=camera, render_flag_overrides=flags)
    except Exception as error:
        raise cannot_render(error) from error


def _load_suite(domain: str, task: str) -> Any:
    """A task of the suite. dm_control draws the systems of `lqr` here, and the seed makes all of them the same."""
    if domain != "lqr":
        return suite().load(domain, task)
    env = suite().load(domain, task, task_kwargs={"random": 0})
    env.task.random.seed()  # episodes without a seed differ
    return env


def _load_manipulation(task: str) -> Any:
    """A task of the arm. One with images renders as soon as it is made."""
    module = manipulation()
    try:
        return module.load(task)
    except Exception as error:
        if has_images(task):
            raise cannot_render(error) from error
        raise


def _space(spec: Any) -> spaces.Box:
    """Numbers and matrices become vectors, so that a policy meets only vectors and images."""
    if spec.dtype == np.uint8:
        return spaces.Box(0, 255, spec.shape[1:], np.uint8)
    return _box(int(np.prod(spec.shape)))


def _shown(value: Any) -> np.ndarray:
    """A part of dm_control's observation as `_space` describes it. Images have a dimension of length 1 in front."""
    if getattr(value, "dtype", None) == np.uint8:
        return value[0]
    return np.ravel(value).astype(np.float32)


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
