"""`train`: a whole run by one call from Python."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paceline import recipes
from paceline.api.policy import TrainedPolicy, load
from paceline.config import Config, leaves
from paceline.distributed.rank_info import RankInfo
from paceline.envs import given
from paceline.envs.registry import with_absolute_paths
from paceline.errors import UsageError
from paceline.evaluation.history import History
from paceline.keywords import keywords_in_messages
from paceline.other_names import meant_by
from paceline.own_code import is_path, path_of, require_main_program
from paceline.recipes.defaults import default_config
from paceline.session import Session, require_population
from paceline.systems import readers
from paceline.telemetry.console import print_line
from paceline.trust import may_run


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A run that has ended or was stopped."""

    folder: Path
    config: Config
    step: int
    """Agent steps trained on, over all ranks."""
    seconds: float
    """Seconds of training."""
    interrupted: bool
    """Whether the user has stopped the run by a signal."""
    env: Callable[..., Any] | None = field(default=None, repr=False, compare=False)
    """The class or function that was given to make the environments; None if it was an id."""

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """One column per metric, by rising step; NaN where a report has no value."""
        return History.load(self.folder).columns

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The trained policy, as of the last checkpoint."""
        return load(self.folder)


@keywords_in_messages
def train(
    start: str | Config | None = None,
    *,
    env: str | Callable[..., Any] | None = None,
    folder: str | Path | None = None,
    callbacks: Iterable[object] = (),
    resume: bool | str = False,
    trust: bool = False,
    **settings: Any,
) -> RunResult:
    """Train a policy, and return when it is trained.

    `start` is the name of a recipe, or a `Config`. Without it, settings are chosen for the environment. `env` is an
    id, a class, or a function that makes one environment; with the parameters `num_envs` and `device` it makes many.
    `settings` are fields of `Config`; a section is a dictionary, as in `ppo={"epochs": 4}`. `folder` is the run folder,
    by default a new one in runs/. `resume` continues the run in `folder`: True for its latest checkpoint, or the name
    of one. With `trust`, code that the folder names runs even if another user wrote it (see SECURITY.md).
    """
    require_main_program()
    folder = None if folder is None else Path(folder).expanduser()
    if env is not None:
        settings["env"] = with_absolute_paths(env) if isinstance(env, str) else given.id_of(env)
    base = _resumed(start, folder, env, settings, trust=trust) if resume else _started(start, env, settings)
    config = configured(base, settings)
    require_population(config)
    made = None if env is None or isinstance(env, str) else env
    with Session(config, folder, env=made, callbacks=callbacks, resume=resume, trust=trust) as session:
        session.run()
    state = session.state
    return RunResult(
        folder=session.folder,
        config=session.config,
        step=state.step,
        seconds=state.seconds,
        interrupted=state.interrupted,
        env=made,
    )


def configured(config: Config, settings: Mapping[str, Any]) -> Config:
    """`config` with other `settings`, which may have dictionaries or configurations of sections as values."""
    given_settings = {name: _as_dict(value) for name, value in settings.items()}
    config = config.under(given_settings.get("system", config.system))
    _hint_at_other_names(given_settings, config.system)
    for name in _names(given_settings):
        if (allowed := readers(name)) and config.system not in allowed:
            raise UsageError(f"{name} has no effect under {config.system}; it is read by: {', '.join(allowed)}")
    return Config.from_settings(_merged(dataclasses.asdict(config), given_settings), "the settings")


def _hint_at_other_names(settings: Iterable[str], system: str) -> None:
    """Refuse settings that another library has, or that lack their section, and name the setting that exists."""
    known = {field.name for field in dataclasses.fields(Config)}
    for name in settings:
        if name not in known and (meant := meant_by(name, system)):
            raise UsageError(f"there is no setting {name!r}; allowed: {', '.join(map(_as_keyword, meant))}")


def _as_keyword(setting: str) -> str:
    """`optimizer={"learning_rate": ...}` for optimizer.learning_rate."""
    first, *rest = setting.split(".")
    value = "..."
    for part in reversed(rest):
        value = f'{{"{part}": {value}}}'
    return f"{first}={value}"


def _started(start: str | Config | None, env: str | Callable[..., Any] | None, settings: Mapping[str, Any]) -> Config:
    """The configuration of a new run, before settings change it."""
    if isinstance(start, Config):
        return start
    if isinstance(start, str):
        name = recipes.known_as(start)
        return dataclasses.replace(recipes.find(name), recipe=name)
    if start is not None:
        hint = "; an environment is env=..." if callable(start) else ""
        raise UsageError(f"start is a {type(start).__name__}; allowed: the name of a recipe, or a Config{hint}")
    if env is None:
        raise UsageError('nothing to train: give a recipe, as in train("cartpole"), a Config, or env=...')
    policy = _as_dict(settings.get("policy", {}))
    config, chosen_for = default_config(
        env,
        settings.get("system", Config.system),
        recurrent=policy.get("core", {}).get("kind", "none") != "none",
        own_policy=is_path(policy.get("kind", "")),
    )
    if RankInfo.find().rank == 0:
        print_line(f"no recipe: settings for {chosen_for}; config.json in the run folder has them")
    return config


def _resumed(
    start: str | Config | None, folder: str | Path | None, env: Any, settings: Mapping[str, Any], *, trust: bool
) -> Config:
    """The configuration of the run in a folder, if the code that it names may run. What `settings` name may."""
    if folder is None or start is not None:
        raise UsageError("resume continues the run in a folder, with its own settings: train(folder=..., resume=True)")
    file = Path(folder) / "config.json"
    config = Config.load(file)
    own = set(_names({name: _as_dict(value) for name, value in settings.items()}))
    classes = {option: name for option, name in config.named_code().items() if option not in own}
    address = config.remote.address if config.remote.actors else None
    may_run(None if env is not None else config.env, file, trust=trust, address=address, classes=classes)
    return config


def _as_dict(value: Any) -> Any:
    """Settings of a section as a dictionary, with classes and functions by their import paths, and paths as text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, list | tuple):
        return [_as_dict(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if callable(value):
        return path_of(value)
    return {name: _as_dict(part) for name, part in value.items()} if isinstance(value, Mapping) else value


def _names(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The dotted name of every setting that differs from its default. Sections may have been given as a whole."""
    known, found = leaves(Config()), []
    for name, value in settings.items():
        dotted = prefix + name
        if isinstance(value, Mapping):
            found += _names(value, f"{dotted}.")
        elif dotted in known and value != known[dotted]:
            found.append(dotted)
    return found


def _merged(base: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(base.get(name), dict)
        merged[name] = _merged(base[name], value) if both else value
    return merged
