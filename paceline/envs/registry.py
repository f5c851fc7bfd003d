"""The families of environments: which exist, which extra each needs, and how an id becomes a factory.

`resolve` runs in the main process, so a wrong id fails before any worker starts.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from paceline.envs import given, user
from paceline.envs.factory import Factory, needs
from paceline.envs.ids import EnvId
from paceline.errors import UsageError, closest
from paceline.own_code import SEARCHED, with_absolute_path


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of environment. Its module is imported on first use.

    The module has `resolve(EnvId) -> Factory` and `names() -> Iterable[str]`. If an id can name code, it also
    has `named_code(EnvId) -> str | None` (see `code_named_by`). If options of an id name files or folders with scenes,
    it also has `scenes_label(EnvId) -> str | None`.
    """

    module: str
    extra: str | None
    """The optional dependencies that it needs."""
    example: str
    about: str
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules that it needs and that no extra installs, with the names of their packages."""
    paths: tuple[str, ...] = ()
    """Options that are paths of files or folders. A family of another package has them in its module, as `PATHS`."""


SCENES = ("plans", "bank_file")
"""Options of navigation's families. They are here because a report must not import the simulators of its runs."""


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
        about="DeepMind Control Suite tasks, from vectors or pixels, and tasks of a Jaco arm",
    ),
    "hand": Family(
        module="paceline.sims.control.family",
        extra="mujoco",
        example="hand:catch",
        about="a hand with 22 joints in MuJoCo: catch a cylinder, pick it up, or turn it in the palm",
    ),
    "parkour": Family(
        module="paceline.sims.control.parkour.family",
        extra="mujoco",
        example="parkour:walker?difficulty=0.5",
        about="a planar walker or a humanoid in MuJoCo runs over gaps, hurdles and other obstacles",
    ),
    "pettingzoo": Family(
        module="paceline.envs.pettingzoo",
        extra="pettingzoo",
        example="pettingzoo:pettingzoo.butterfly.pistonball_v6",
        about="multi-agent environments of PettingZoo, parallel or turn-based; one slot per agent",
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
        about="batched simulators on the policy's device; tensor:package.module:Class is your own",
    ),
    "pointnav": Family(
        module="paceline.sims.navigation.family",
        extra=None,
        paths=SCENES,
        example="pointnav:small?resolution=64",
        about="PointGoal navigation in procedural apartments: batched on the policy's device, or one at a time",
    ),
    "flee": Family(
        module="paceline.sims.navigation.family",
        extra=None,
        paths=SCENES,
        example="flee:small?resolution=64",
        about="the same apartments: get as far as possible from the start",
    ),
    "explore": Family(
        module="paceline.sims.navigation.family",
        extra=None,
        paths=SCENES,
        example="explore:small?resolution=64",
        about="the same apartments: visit as many places as possible",
    ),
    "objectnav": Family(
        module="paceline.sims.navigation.family",
        extra=None,
        paths=SCENES,
        example="objectnav:full?resolution=64",
        about="the same apartments: find an object of a category, for example a bed",
    ),
    "imagenav": Family(
        module="paceline.sims.navigation.family",
        extra=None,
        paths=SCENES,
        example="imagenav:small?resolution=64",
        about="the same apartments: walk to where a picture was taken",
    ),
    "rearrange": Family(
        module="paceline.sims.rearrangement.family",
        extra=None,
        example="rearrange:pick",
        about="a mobile manipulator in apartments with a kitchen: navigate, pick, place, open and close",
    ),
    "rearrange_mujoco": Family(
        module="paceline.sims.rearrangement.dynamics.family",
        extra="mujoco",
        example="rearrange_mujoco:open_fridge",
        about="the same with masses and contacts, in MuJoCo: pick, open and close",
    ),
    "habitat": Family(
        module="paceline.envs.habitat",
        extra=None,
        example="habitat:benchmark/nav/pointnav/pointnav_gibson.yaml?split=val",
        about="tasks of Habitat, where habitat-lab and habitat-sim are installed",
        modules={"habitat": "habitat-lab", "habitat_sim": "habitat-sim"},
    ),
    "synthetic": Family(
        module="paceline.envs.synthetic",
        extra=None,
        example="synthetic:lognormal?mean=0.01&sigma=1",
        about="a simulator with a settable step cost, for scheduling benchmarks",
    ),
}


ENTRY_POINTS = "paceline.envs"
"""The group in which a package names families of its own: `name = "package.module"`."""


@functools.cache
def families() -> dict[str, Family]:
    """All families, those of other installed packages last. Asking for these takes a while."""
    found = dict(FAMILIES)
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        about = f"of the package {point.dist.name}" if point.dist is not None else ""
        found.setdefault(point.name, Family(module=point.value, extra=None, example=f"{point.name}:...", about=about))
    return found


def resolve(env: str | EnvId | Callable[..., Any] | Factory) -> Factory:
    """The factory for an id, for a callable without required arguments, or the factory itself. A callable with a
    parameter `env_index` gets the environment's index."""
    if isinstance(env, Factory):
        return env
    if not isinstance(env, str | EnvId):
        given.require_maker(env)
        return user.from_callable(env)
    env_id = EnvId.parse(env) if isinstance(env, str) else env
    if env_id.family in FAMILIES:
        return load(env_id.family).resolve(env_id)
    if env_id.family == given.FAMILY:
        raise given.refusal(str(env_id))
    if env_id.family in families():
        return load(env_id.family).resolve(env_id)
    if env_id.name and ("." in env_id.family or user.importable(env_id.family)):
        return user.resolve(env_id)
    searched = ""
    if env_id.name and env_id.family.isidentifier():
        searched = f", and no such module was found, which is looked for in {SEARCHED.format(os.getcwd())}"
    raise UsageError(
        f"environment family {env_id.family!r} of {str(env_id)!r} does not exist{searched}{_suggestion(env_id)}; "
        f"allowed: {', '.join(families())}, or package.module:function or ./file.py:function for your own"
    )


def _suggestion(env_id: EnvId) -> str:
    """A similar family, or the id of a Gymnasium environment that was named without its family."""
    if not env_id.name:
        names = load("gym").names()
        if env_id.family in names:
            return f", did you mean 'gym:{env_id.family}'?"
    return closest(env_id.family, families())


def code_named_by(env: str) -> str | None:
    """What code of its author's choice an id would run, in words that follow "it would". None if it names no code.

    Ids of installed simulators run only these, with checked options. This function imports nothing that the id names.
    """
    env_id = EnvId.parse(env)
    if env_id.family == given.FAMILY:
        return None
    if env_id.family not in families():
        return f"import the module {env_id.family!r} and call {env_id.name!r}" if env_id.name else None
    named_code = getattr(load(env_id.family), "named_code", None)
    return None if named_code is None else named_code(env_id)


def with_absolute_paths(env: str) -> str:
    """An id that means the same in every folder: with the whole paths of the files and folders that it names."""
    env = with_absolute_path(env)
    env_id = EnvId.parse(env)
    given_paths = {name: env_id.options.get(name) for name in _path_options(env_id)}
    # Values that are no path are refused when the id is resolved.
    paths = {
        name: str(Path(path).expanduser().resolve())
        for name, path in given_paths.items()
        if path and isinstance(path, str)
    }
    return str(replace(env_id, options=env_id.options | paths)) if paths else env


def _path_options(env_id: EnvId) -> Iterable[str]:
    if env_id.family in FAMILIES:
        return FAMILIES[env_id.family].paths
    try:
        return _of_family(env_id, "PATHS") or ()
    except UsageError:  # the package is broken, which `resolve` says
        return ()


def scenes_label(env: str) -> str | None:
    """The label of the scenes in the files that an id names. Edited floor plans have another. None if it names none."""
    env_id = EnvId.parse(env)
    label = _of_family(env_id, "scenes_label")
    return None if label is None else label(env_id)


def _of_family(env_id: EnvId, name: str) -> Any:
    """What the family of an id says about its options under `name`, if there are any."""
    if not env_id.options or env_id.family not in families():
        return None
    return getattr(load(env_id.family), name, None)


def load(name: str) -> Any:
    """The module of a family. `MissingExtra` says what to install if its package is missing."""
    if name not in FAMILIES:
        return _load_installed(name, families()[name].module)
    family = FAMILIES[name]
    with needs(name, family.extra) if family.extra is not None else contextlib.nullcontext():
        return importlib.import_module(family.module)


def _load_installed(name: str, module: str) -> Any:
    """The module of a family of another package."""
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(f"the environment family {name!r} of an installed package is broken: {error}") from error
    for attribute in ("resolve", "names"):
        if not callable(getattr(found, attribute, None)):
            raise UsageError(f"the environment family {name!r}: the module {module} has no function {attribute!r}")
    return found
