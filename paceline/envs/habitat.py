"""`habitat:CONFIG`: the tasks of Habitat, by the Gym interface of habitat-lab (written for version 0.3).

CONFIG is a file of habitat-lab, such as `benchmark/nav/pointnav/pointnav_gibson.yaml`, or one of your own. Options with
a dot in their name are settings of the config: `?habitat.environment.max_episode_steps=100`.

habitat-lab uses the old Gym API: other space classes, one `done` flag, and no seed at a reset. This module translates.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from paceline.envs.factory import Factory
from paceline.envs.ids import EnvId
from paceline.envs.options import Options, has_text
from paceline.errors import MissingPackage, UsageError, closest

INSTALL = "conda install habitat-sim withbullet -c conda-forge -c aihabitat; pip install habitat-lab"
MEASURES = ("success", "spl", "soft_spl", "distance_to_goal")
"""Measures that a training run reports, where the task has them. Evaluation reports all."""


@dataclass(frozen=True, kw_only=True)
class HabitatSettings:
    """The options of a `habitat:` id, and their defaults."""

    config: str
    """A config file of habitat-lab, or the path of another one."""
    overrides: tuple[str, ...] = ()
    """Settings in Hydra's notation: "habitat.task.slack_reward=-0.01"."""
    split: str = ""
    """The split of the dataset; empty for that of the config."""
    seed: int | None = None
    """Environment i uses `seed` + i. None: the seed of the run."""
    scenes: int = 0
    """Scenes that an environment loads: the first loads the first of them, the second the next, and so on, beginning
    again after the last scene. 0 for all scenes in every environment."""


def names() -> list[str]:
    """The benchmark configs of the installed habitat-lab."""
    folder = _config_folder()
    if folder is None:
        raise _missing(ModuleNotFoundError("No module named 'habitat'"))
    return sorted(str(file.relative_to(folder)) for file in folder.glob("benchmark/**/*.yaml"))


def resolve(env_id: EnvId) -> Factory:
    settings = _settings(env_id)
    _check(settings, env_id)
    return Factory(make=MakeHabitat(settings), label=str(env_id))


def named_code(env_id: EnvId) -> str | None:
    """A config can name modules that Habitat imports. Those of habitat-lab itself name none."""
    folder = _config_folder()
    if os.path.exists(env_id.name) or folder is None or not (folder / env_id.name).resolve().is_relative_to(folder):
        return f"read the Habitat config {env_id.name!r}, which may name modules"
    if has_text([value for name, value in env_id.options.items() if "." in name]):
        return "give Habitat texts as settings, which may be the names of modules"
    return None


@dataclass(frozen=True)
class MakeHabitat:
    """Makes one environment. Habitat is imported where it is called."""

    settings: HabitatSettings

    def __call__(self, env_index: int) -> HabitatEnv:
        return HabitatEnv(self.settings, env_index)


class HabitatEnv(gymnasium.Env):
    """One environment of Habitat with Gymnasium's API.

    Images are channel-first. The `info` has the measures of the task, such as `success` and `spl`. Measures with
    several numbers have dotted names: `collisions.count`.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012 - as Gymnasium declares it
    render_mode = "rgb_array"

    def __init__(self, settings: HabitatSettings, env_index: int = 0) -> None:
        from habitat.gym import make_gym_from_config

        config = _config(settings)
        _divide(config, settings, env_index)
        self._seed = config.habitat.seed if settings.seed is not None else None
        self._env = make_gym_from_config(config)
        kind = type(self._env.action_space).__name__
        if kind not in ("Discrete", "Box"):
            self._env.close()
            raise UsageError(
                f"the actions of the Habitat config {settings.config!r} are a {kind}; allowed: Discrete, Box"
            )
        # None for environments of other packages that Habitat wraps (its env_task GymRegistryEnv).
        self._task_env: Any = self._env.unwrapped if hasattr(self._env.unwrapped, "habitat_env") else None
        self._episodes = list(self._task_env.episodes) if self._task_env is not None else []
        self.observation_space = _observation_space(self._env.observation_space)
        self.action_space = _space(self._env.action_space)
        self.measure_names = self._measure_names()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self._reseed(seed if self._seed is None else self._seed)
        return _observation(self._env.reset(), self.observation_space), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        if isinstance(self.action_space, spaces.Box):
            action = np.clip(np.asarray(action, np.float32), self.action_space.low, self.action_space.high)
        else:
            action = int(action)
        obs, reward, done, info = self._env.step(action)
        truncated = bool(done) and self._ran_out_of_time(info)
        obs = _observation(obs, self.observation_space)
        return obs, float(reward), bool(done) and not truncated, truncated, _flat(info)

    def render(self) -> np.ndarray:
        return self._env.render(mode="rgb_array")

    def close(self) -> None:
        self._env.close()

    def _reseed(self, seed: int) -> None:
        """Seed the simulator and the task, and start a new order of episodes."""
        if self._episodes:
            from habitat.config import read_write

            with read_write(self._task_env.config):
                self._task_env.config.seed = seed
            # Assigning the episodes makes a new iterator with the seed of the config. It shuffles the list in place.
            self._task_env.episodes = list(self._episodes)
        self._env.seed(seed)

    def _ran_out_of_time(self, info: Mapping[str, Any]) -> bool:
        """Whether the episode, which is over, ended by its limit of steps or seconds."""
        if self._task_env is None:
            return bool(info.get("TimeLimit.truncated", False))
        task = self._task_env.config.task
        succeeded = task.end_on_success and bool(info[task.success_measure])
        return self._task_env.habitat_env.task.is_episode_active and not succeeded

    def _measure_names(self) -> tuple[str, ...]:
        if self._task_env is None:
            return ()
        return tuple(name for name in MEASURES if name in self._task_env.habitat_env.task.measurements.measures)


def _settings(env_id: EnvId) -> HabitatSettings:
    if not env_id.name:
        raise UsageError(
            f"{str(env_id)!r} names no config; allowed: habitat:benchmark/nav/pointnav/pointnav_gibson.yaml"
        )
    own = {name: value for name, value in env_id.options.items() if "." not in name}
    options = Options(EnvId(env_id.family, env_id.name, own), ["split", "seed", "scenes", "habitat.SETTING"])
    settings = {name: value for name, value in env_id.options.items() if "." in name}
    return HabitatSettings(
        config=env_id.name,
        overrides=tuple(f"{name}={_hydra(value)}" for name, value in settings.items()),
        split=str(options.get("split", "")),
        seed=options.integer("seed", 0) if "seed" in own else None,
        scenes=options.integer("scenes", 0),
    )


def _hydra(value: Any) -> str:
    """A value in Hydra's notation."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        is_hydras = value.lower() == "null" or (value.startswith("[") and value.endswith("]"))
        return value if is_hydras else _quoted(value)
    return f"[{','.join(map(_hydra, value))}]" if isinstance(value, list | tuple) else str(value)


def _quoted(text: str) -> str:
    """Text in Hydra's quotes. Backslashes count only before a quote, where each is written twice."""
    escaped = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), text)
    return f"'{escaped}'"


def _check(settings: HabitatSettings, env_id: EnvId) -> None:
    """Find missing packages, a wrong config and missing episodes before a worker starts."""
    try:
        import habitat  # noqa: F401
    except ImportError as error:
        raise _missing(error) from error
    if importlib.util.find_spec("habitat_sim") is None:
        raise _missing(ModuleNotFoundError("No module named 'habitat_sim'"))
    folder = _config_folder()
    if not os.path.isfile(settings.config) and (folder is None or not (folder / settings.config).is_file()):
        raise UsageError(
            f"config {settings.config!r} of {str(env_id)!r} does not exist{closest(settings.config, names())}; "
            "allowed: a config of habitat-lab (`paceline envs habitat` lists them), or the path of a file"
        )
    try:
        dataset = _config(settings).habitat.dataset
    except Exception as error:  # Hydra and OmegaConf have many, with no common class
        reason = " ".join(str(error).split())
        raise UsageError(f"the config of {str(env_id)!r} cannot be composed: {reason}") from error
    file = str(dataset.data_path).format(split=dataset.split)
    if dataset.type and not os.path.exists(file):
        raise UsageError(
            f"the episodes of {str(env_id)!r} are not there: {file!r} does not exist; "
            "python -m habitat_sim.utils.datasets_download downloads datasets"
        )


def _config(settings: HabitatSettings) -> Any:
    from habitat import get_config

    split = [f"habitat.dataset.split={_hydra(settings.split)}"] if settings.split else []
    return get_config(settings.config, overrides=[*settings.overrides, *split])


def _divide(config: Any, settings: HabitatSettings, env_index: int) -> None:
    """Give an environment its own seed and scenes."""
    from habitat import make_dataset
    from habitat.config import read_write

    first = config.habitat.seed if settings.seed is None else settings.seed
    dataset = config.habitat.dataset
    with read_write(config):
        config.habitat.seed = first + env_index
        if settings.scenes:
            scenes = list(dataset.content_scenes)
            if "*" in scenes:
                scenes = make_dataset(dataset.type).get_scenes_to_load(dataset)
            dataset.content_scenes = own_scenes(scenes, settings.scenes, env_index)


def own_scenes(scenes: Sequence[str], count: int, env_index: int) -> list[str]:
    """The `count` scenes of an environment, or all if there are fewer."""
    count = min(count, len(scenes))
    return [scenes[(env_index * count + number) % len(scenes)] for number in range(count)]


def _space(space: Any) -> spaces.Space:
    """A space of the old `gym` package as a space of Gymnasium."""
    kind = type(space).__name__
    if kind == "Dict":
        return spaces.Dict({name: _space(one) for name, one in space.spaces.items()})
    if kind == "Box":
        return spaces.Box(space.low, space.high, space.shape, space.dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(int(space.n))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(space.nvec)
    if kind == "MultiBinary":
        return spaces.MultiBinary(space.n)
    raise UsageError(f"Habitat's space {space} has no counterpart in Gymnasium; allowed: Box, Discrete, Dict")


def _observation_space(space: Any) -> spaces.Space:
    """As `_space`, with images channel-first."""
    found = _space(space)
    if isinstance(found, spaces.Dict):
        return spaces.Dict({name: _observation_space(one) for name, one in space.spaces.items()})
    if isinstance(found, spaces.Box) and len(found.shape) == 3:
        low, high = np.moveaxis(found.low, -1, 0), np.moveaxis(found.high, -1, 0)
        return spaces.Box(low, high, dtype=found.low.dtype.type)
    return found


def _observation(obs: Any, space: spaces.Space) -> Any:
    """Images channel-first, and only the parts that are in the space."""
    if isinstance(space, spaces.Dict):
        return {name: _observation(obs[name], one) for name, one in space.spaces.items()}
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        return np.moveaxis(np.asarray(obs), -1, 0)
    return obs


def _flat(info: Mapping[str, Any]) -> dict[str, Any]:
    """Nested measures under dotted names. Pools keep only the numbers."""
    found: dict[str, Any] = {}
    for name, value in info.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{inner}": one for inner, one in _flat(value).items()}
        else:
            found[name] = value
    return found


def _config_folder() -> Path | None:
    """The configs of the installed habitat-lab, found without importing it. None if it is not installed."""
    found = importlib.util.find_spec("habitat")
    if found is None or found.origin is None:
        return None
    return (Path(found.origin).parent / "config").resolve()


def _missing(cause: ImportError) -> MissingPackage:
    return MissingPackage("the environment family 'habitat'", INSTALL, cause)
