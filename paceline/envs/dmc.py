"""`dmc:domain-task`: the DeepMind Control Suite by dm_control, or by EnvPool in C++ where it is installed.

EnvPool has the suite's models and rewards. Some of its tasks observe more than dm_control's, or in another order. This
family gives dm_control's observations in dm_control's order, so that a policy trained with one runs with the other.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from paceline.envs.factory import Factory, needs
from paceline.envs.ids import EnvId
from paceline.envs.options import Options
from paceline.errors import UsageError, closest

if TYPE_CHECKING:
    from paceline.envs.envpool import EnvPoolTask

log = logging.getLogger(__name__)


def names() -> list[str]:
    return [f"{domain}-{task}" for domain, task in _suite().ALL_TASKS]


def resolve(env_id: EnvId) -> Factory:
    """Options: `frameskip`, the control steps per action, and `flat`, one vector as the observation."""
    options = Options(env_id, ["frameskip", "flat"])
    frameskip = options.integer("frameskip", 1, minimum=1)
    flat = options.flag("flat", False)
    allowed = names()
    if env_id.name not in allowed:
        raise UsageError(
            f"task {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, allowed)}; "
            f"allowed: {', '.join(allowed)}"
        )
    domain, _, task = env_id.name.partition("-")
    one = Factory(make=partial(_make, domain, task, frameskip, flat), frameskip=frameskip, label=str(env_id))
    many = _in_envpool(domain, task, flat) if frameskip == 1 else None
    return one if many is None else Factory(make=many, backend="envpool", label=str(env_id), single=one)


def _make(domain: str, task: str, frameskip: int, flat: bool, env_index: int) -> ControlTask:
    return ControlTask(domain, task, frameskip, flat)


@functools.cache
def _in_envpool(domain: str, task: str, flat: bool) -> EnvPoolTask | None:
    """EnvPool's version of a task. None unless it has dm_control's time limit and observations."""
    if importlib.util.find_spec("envpool") is None:
        return None
    try:
        from paceline.envs.envpool import EnvPoolTask, config_of
        from paceline.envs.envpool import names as envpool_names
    except ImportError as error:
        log.warning("EnvPool is installed but cannot be imported (%s): control tasks run in dm_control", error)
        return None
    words = f"{domain}_{task}".split("_")
    name = "".join(word[:1].upper() + word[1:] for word in words) + "-v1"
    if name not in envpool_names():
        return None
    env = _suite().load(domain, task)
    sizes = {key: int(np.prod(spec.shape)) for key, spec in env.observation_spec().items()}
    limit = env._step_limit
    env.close()
    spec = EnvPoolTask(name).spec()
    shown = {key: int(np.prod(box.shape)) for key, box in spec.gymnasium_observation_space.spaces.items()}
    if config_of(spec)["max_episode_steps"] != limit or any(shown.get(key) != size for key, size in sizes.items()):
        return None
    return EnvPoolTask(name, vectors=tuple(sizes), flat=flat)


def _suite() -> Any:
    with needs("dmc"), warnings.catch_warnings():
        # dm_control warns at import if there is no display, but only rendering needs one. The user sets MUJOCO_GL.
        warnings.filterwarnings("ignore", message=".*DISPLAY")
        from dm_control import suite
    # The suite's own models use deprecated attributes of MuJoCo, and users cannot do anything about it.
    absl_log = logging.getLogger("absl")
    if _not_of_models not in absl_log.filters:
        absl_log.addFilter(_not_of_models)
    return suite


def _not_of_models(record: logging.LogRecord) -> bool:
    return "compiler attribute" not in record.getMessage()


class ControlTask(gymnasium.Env):
    """One task. Observations are float32 vectors by dm_control's names, or with `flat` all of them concatenated.

    The end of an episode is a termination if the task's discount is 0, and otherwise a truncation. Most tasks end only
    by their time limit.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}  # noqa: RUF012 - as Gymnasium declares it
    render_mode = "rgb_array"

    def __init__(self, domain: str, task: str, frameskip: int = 1, flat: bool = False) -> None:
        self._env = _suite().load(domain, task)
        self._frameskip, self._flat = frameskip, flat
        action = self._env.action_spec()
        low, high = (
            np.broadcast_to(bound, action.shape).astype(np.float32) for bound in (action.minimum, action.maximum)
        )
        self.action_space = spaces.Box(low, high, dtype=np.float32)
        # Scalars become vectors of length one, so that a policy meets only vectors.
        sizes = {key: int(np.prod(spec.shape)) for key, spec in self._env.observation_spec().items()}
        if flat:
            self.observation_space = _box(sum(sizes.values()))
        else:
            self.observation_space = spaces.Dict({key: _box(size) for key, size in sizes.items()})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._env.task.random.seed(seed % 2**32)
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
        return self._env.physics.render(height=480, width=640, camera_id=0)

    def close(self) -> None:
        self._env.close()

    def _observe(self, timestep: Any) -> Any:
        parts = {key: np.ravel(value).astype(np.float32) for key, value in timestep.observation.items()}
        return np.concatenate(list(parts.values())) if self._flat else parts


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)
