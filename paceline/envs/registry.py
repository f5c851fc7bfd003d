"""The families of environments: which exist, what each needs installed, and how an id becomes something to step.

`resolve` runs in the main process and fails there, before any worker is started, when an id is wrong. What it returns
is shipped to simulator processes, so it imports nothing heavy until it is called.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.envs.ids import EnvId
from paceline.errors import MissingExtra, UsageError, closest


@dataclass(frozen=True, kw_only=True)
class Factory:
    """Builds one environment; picklable, and cheap to import where it is called."""

    make: Callable[[int], Any]
    """`make(env_index)` returns a Gymnasium environment or a PettingZoo parallel environment."""
    frameskip: int = 1
    """Simulator frames per step."""
    backend: str | None = None
    """The only pool backend that can run it, where there is only one: "envpool" or "tensor"."""
    label: str = ""
    """The id it came from."""
    single: Factory | None = None
    """The same environment one at a time, for the pools that step single ones, where `make` makes many at once."""

    @property
    def steps_singly(self) -> bool:
        """Whether it is at home in the pools that step single environments too, which can do what EnvPool cannot: be saved, and
        replace one that failed."""
        return self.backend is None or (self.backend == "envpool" and self.single is not None)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of environment. Its module has `resolve(EnvId) -> Factory` and `names() -> Iterable[str]`.

    Where an id can name code, it also has `named_code(EnvId) -> str | None` (see `code_named_by`).
    """

    module: str
    extra: str | None
    example: str
    about: str


FAMILIES: dict[str, Family] = {
    "gym": Family(
        module="paceline.envs.gym",
        extra=None,
        example="gym:CartPole-v1",
        about="any registered Gymnasium environment; options are its keyword arguments",
    ),
    "atari": Family(
        module="paceline.envs.atari",
        extra="atari",
        example="atari:Breakout",
        about="Atari games by ale-py with the standard preprocessing",
    ),
    "doom": Family(
        module="paceline.envs.doom",
        extra="doom",
        example="doom:my_way_home",
        about="ViZDoom scenarios by the vizdoom package",
    ),
    "dmc": Family(
        module="paceline.envs.dmc",
        extra="dmc",
        example="dmc:cheetah-run",
        about="DeepMind Control Suite tasks",
    ),
    "pettingzoo": Family(
        module="paceline.envs.pettingzoo",
        extra="pettingzoo",
        example="pettingzoo:pettingzoo.butterfly.pistonball_v6",
        about="multi-agent environments with PettingZoo's parallel API; one slot per agent",
    ),
    "envpool": Family(
        module="paceline.envs.envpool",
        extra="envpool",
        example="envpool:Breakout-v5",
        about="EnvPool's C++ environments, stepped by its own threads",
    ),
    "tensor": Family(
        module="paceline.envs.tensor",
        extra=None,
        example="tensor:cartpole",
        about="batched simulators whose state is torch tensors on the policy's device",
    ),
    "pointnav": Family(
        module="paceline.sims.navigation.family",
        extra=None,
        example="pointnav:small?resolution=64",
        about="PointGoal navigation in procedural apartments: batched on the policy's device, or one at a time",
    ),
    "synthetic": Family(
        module="paceline.envs.synthetic",
        extra=None,
        example="synthetic:lognormal?mean=0.01&sigma=1",
        about="a simulator with a settable step cost, for scheduling benchmarks",
    ),
}


def resolve(env: str | EnvId | Callable[..., Any] | Factory) -> Factory:
    """The factory for an id, a callable of no or one argument (the environment's index), or a factory itself."""
    if isinstance(env, Factory):
        return env
    if callable(env):
        from paceline.envs.user import from_callable

        return from_callable(env)
    env_id = EnvId.parse(env) if isinstance(env, str) else env
    family = FAMILIES.get(env_id.family)
    if family is None:
        from paceline.envs import user

        if env_id.name and ("." in env_id.family or user.importable(env_id.family)):
            return user.resolve(env_id)
        raise UsageError(
            f"environment family {env_id.family!r} of {str(env_id)!r} does not exist{closest(env_id.family, FAMILIES)}; "
            f"allowed: {', '.join(FAMILIES)}, or package.module:function for your own"
        )
    return load(env_id.family).resolve(env_id)


def code_named_by(env: str) -> str | None:
    """What code of the author's choice an id would run, in words that follow "it would"; None if it names none.

    Ids of installed simulators run these, with options that they check. Nothing that the id names is imported here.
    """
    env_id = EnvId.parse(env)
    if env_id.family not in FAMILIES:
        return f"import the module {env_id.family!r} and call {env_id.name!r}" if env_id.name else None
    named_code = getattr(load(env_id.family), "named_code", None)
    return None if named_code is None else named_code(env_id)


def load(name: str) -> Any:
    """The module of a family, or a `MissingExtra` that says what to install."""
    with needs(name):
        return importlib.import_module(FAMILIES[name].module)


@contextlib.contextmanager
def needs(name: str) -> Iterator[None]:
    """Within it, a package that a family needs and that is not installed is a `MissingExtra`.

    Families import what they adapt inside functions, and in the main process inside this: a factory can then be
    unpickled anywhere without importing a simulator.
    """
    try:
        yield
    except ImportError as error:
        extra = FAMILIES[name].extra
        if extra is None or (error.name or "").startswith("paceline"):
            raise
        raise MissingExtra(f"the environment family {name!r}", extra, error) from error


def check_options(env_id: EnvId, allowed: Iterable[str]) -> None:
    """Refuse options that a family does not have."""
    allowed = list(allowed)
    for option in env_id.options:
        if option not in allowed:
            raise UsageError(
                f"option {option!r} of {str(env_id)!r} does not exist{closest(option, allowed)}; "
                f"allowed: {', '.join(allowed) or 'none'}"
            )
