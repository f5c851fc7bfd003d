"""EnvPool's tasks: `envpool:Breakout-v5?frame_skip=4`. Options are the task's own EnvPool configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from paceline.envs import envpool_opengl

# isort: split
import envpool
import numpy as np
from envpool.registration import registry
from gymnasium import spaces

from paceline.envs.factory import Factory, check_options
from paceline.envs.ids import EnvId
from paceline.envs.options import has_text
from paceline.errors import UsageError, closest

_SET_BY_POOL = {
    "num_envs",
    "num_threads",
    "max_num_players",
    "thread_affinity_offset",
    "base_path",
    "seed",
    "env_seed",
    "gym_reset_return_info",
}
_FROM_ONE = ("stack_num", "frame_skip", "img_height", "img_width", "max_episode_steps")
"""Options that EnvPool takes at 0, too. Some tasks then crash the process."""
_PIXEL_OPTIONS = ("from_pixels", "render_width", "render_height", "render_camera_id")


@dataclass(frozen=True)
class EnvPoolTask:
    """A task and its options. Unlike the `make` of other families it makes n environments at once."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    batch_size: int = 0
    """0: rows that were sent together come back together. 1: each row comes back as soon as it is finished."""
    vectors: tuple[str, ...] | None = None
    """The observations to give, in this order, as float32 vectors. None for all observations, unchanged."""
    flat: bool = False
    """Concatenate the vectors."""

    def __call__(self, num_envs: int, **settings: Any) -> Any:
        """An EnvPool of `num_envs` environments. The pool decides the `settings` (seeds, threads)."""
        size = self.batch_size or num_envs
        return envpool.make_gymnasium(self.name, num_envs=num_envs, batch_size=size, **self.options, **settings)

    def spaces(self, spec: Any) -> tuple[spaces.Space, spaces.Space]:
        """Observation and action space of one environment. `spec` is EnvPool's description."""
        observation_space, action_space = spaces_of(spec)
        if self.vectors is None:
            return observation_space, action_space
        assert isinstance(observation_space, spaces.Dict) and isinstance(action_space, spaces.Box)
        sizes = {name: int(np.prod(observation_space[name].shape or 1)) for name in self.vectors}
        low, high = action_space.low.astype(np.float32), action_space.high.astype(np.float32)
        action_space = spaces.Box(low, high, dtype=np.float32)
        if self.flat:
            return _vector(sum(sizes.values())), action_space
        return spaces.Dict({name: _vector(size) for name, size in sizes.items()}), action_space

    def spec(self) -> Any:
        """EnvPool's description of the task. Makes no environment."""
        try:
            return envpool.make_spec(self.name, **self.options)
        except (TypeError, ValueError, AssertionError, RuntimeError, ImportError) as error:
            options = ", ".join(f"{key}={value!r}" for key, value in self.options.items()) or "no options"
            raise UsageError(f"envpool:{self.name} cannot be made with {options}: {_first_line(error)}") from error


def resolve(env_id: EnvId) -> Factory:
    """The factory of an EnvPool task. Raises for everything that can be wrong with the id."""
    tasks = envpool.list_all_envs()
    if env_id.name not in tasks:
        raise UsageError(
            f"EnvPool has no task {env_id.name!r}{closest(env_id.name, tasks)}; `paceline envs envpool` lists them all"
        )
    keys = config_of(EnvPoolTask(env_id.name).spec())
    allowed = [key for key in keys if key not in _SET_BY_POOL]
    if registry.specs[env_id.name][0].startswith("envpool.mujoco"):
        allowed += [option for option in _PIXEL_OPTIONS if option not in allowed]
    check_options(env_id, allowed)
    for name in _FROM_ONE:
        value = env_id.options.get(name)
        if isinstance(value, int | float) and value < 1:
            raise UsageError(f"{name} of {str(env_id)!r} is {value}; allowed: a whole number from 1")
    if env_id.options.get("from_pixels"):
        envpool_opengl.require(str(env_id))
    options = dict(env_id.options)
    batch_size = options.pop("batch_size", 0)
    if batch_size not in (0, 1):
        raise UsageError(
            f"batch_size is {batch_size!r} in {str(env_id)!r}; allowed: 0 (rows that were sent together come back "
            "together) and 1 (each row comes back as soon as it is finished)"
        )
    task = EnvPoolTask(env_id.name, options, batch_size)
    config = config_of(task.spec())
    if config["max_num_players"] != 1:
        raise UsageError(
            f"EnvPool's {env_id.name!r} has {config['max_num_players']} players, and only its single-player tasks are "
            "supported; for several agents see the pettingzoo family"
        )
    frameskip = int(config.get("frame_skip", config.get("action_repeat", 1)))
    return Factory(make=task, frameskip=max(1, frameskip), backend="envpool", label=str(env_id))


def named_code(env_id: EnvId) -> str | None:
    """Some options name programs: EnvPool starts `vzd_path`."""
    if has_text([*env_id.options.values()]):
        return f"give EnvPool's {env_id.name!r} texts, which may be the names of programs"
    return None


def names() -> Iterable[str]:
    return sorted(envpool.list_all_envs())


def config_of(spec: Any) -> dict[str, Any]:
    """Every configuration key of a task with its value."""
    return dict(zip(spec._config_keys, spec._config_values, strict=True))


def spaces_of(spec: Any) -> tuple[spaces.Space, spaces.Space]:
    """EnvPool's own observation and action space of one environment."""
    return _unbounded(spec.gymnasium_observation_space), _unbounded(spec.gymnasium_action_space)


def _unbounded(space: spaces.Space) -> spaces.Space:
    """`space` with infinite bounds where EnvPool has none.

    EnvPool writes "no bounds" as the limits of the C++ type. The lower limit of a C++ float is its smallest POSITIVE
    number, so an unbounded box would hold positive numbers only.
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _unbounded(child) for key, child in space.spaces.items()})
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        return space
    limits = np.finfo(space.dtype)
    low = np.where(space.low == limits.tiny, -np.inf, space.low)
    high = np.where(space.high == limits.max, np.inf, space.high)
    return spaces.Box(low.astype(space.dtype), high.astype(space.dtype), dtype=space.dtype)


def _vector(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
