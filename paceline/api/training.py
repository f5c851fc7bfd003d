"""`train`: a whole run by one call from Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from paceline import recipes
from paceline.api.policy import TrainedPolicy, load
from paceline.config import Config, leaves
from paceline.distributed.rank_info import RankInfo
from paceline.envs import given, user
from paceline.errors import UsageError
from paceline.evaluation.history import History
from paceline.nets.config import named_classes
from paceline.population.config import named_code
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

    @cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """One column per metric, by rising step; NaN where a report has no value."""
        return History.load(self.folder).columns

    @cached_property
    def policy(self) -> TrainedPolicy:
        """The trained policy, as of the last checkpoint."""
        return load(self.folder)


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
    user.require_main_program()
    folder = None if folder is None else Path(folder).expanduser()
    if env is not None:
        settings["env"] = user.with_absolute_path(env) if isinstance(env, str) else given.id_of(env)
    base = _resumed(start, folder, env, trust=trust) if resume else _started(start, env, settings)
    config = configured(base, settings)
    require_population(config)
    if folder is not None and not resume and (Path(folder) / "checkpoints" / "latest").exists():
        raise UsageError(f"{folder} holds a run already; resume=True continues it, another folder starts a new one")
    made = None if env is None or isinstance(env, str) else env
    checkpoint = ("latest" if resume is True else resume) if resume else None
    with Session(config, folder, env=made, callbacks=callbacks, resume=checkpoint, trust=trust) as session:
        session.run()
    state = session.state
    return RunResult(
        folder=session.folder,
        config=config,
        step=state.step,
        seconds=state.seconds,
        interrupted=state.interrupted,
    )


def configured(config: Config, settings: Mapping[str, Any]) -> Config:
    """`config` with other `settings`, which may have dictionaries or configurations of sections as values."""
    given_settings = {name: _as_dict(value) for name, value in settings.items()}
    config = config.under(given_settings.get("system", config.system))
    for name in _names(given_settings):
        if (allowed := readers(name)) and config.system not in allowed:
            raise UsageError(f"{name} has no effect under {config.system}; it is read by: {', '.join(allowed)}")
    return Config.from_settings(_merged(dataclasses.asdict(config), given_settings), "the settings")


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
    core = _as_dict(settings.get("policy", {})).get("core", {}).get("kind", "none")
    config, chosen_for = default_config(env, settings.get("system", Config.system), recurrent=core != "none")
    if RankInfo.find().rank == 0:
        print_line(f"no recipe: settings for {chosen_for}; config.json in the run folder has them")
    return config


def _resumed(start: str | Config | None, folder: str | Path | None, env: Any, *, trust: bool) -> Config:
    """The configuration of the run in a folder, if the code that it names may run."""
    if folder is None or start is not None:
        raise UsageError("resume continues the run in a folder, with its own settings: train(folder=..., resume=True)")
    file = Path(folder) / "config.json"
    config = Config.load(file)
    classes = named_classes(config.policy, config.control) | named_code(config.population, config.league)
    address = config.remote.address if config.remote.actors else None
    may_run(None if env is not None else config.env, file, trust=trust, address=address, classes=classes)
    return config


def _as_dict(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
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
