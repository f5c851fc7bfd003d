"""Recipes: one function per experiment, which returns a complete `Config`. `paceline recipes` prints their
docstrings."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points

from paceline.config import Config
from paceline.envs.registry import FAMILIES, families
from paceline.envs.user import importable, required_arguments
from paceline.errors import UsageError, closest
from paceline.own_code import find as find_own
from paceline.recipes import atari, classic, control, doom, mujoco, navigation, pointnav, rearrangement, selfplay

RECIPES: dict[str, Callable[[], Config]] = {
    "pointnav": pointnav.pointnav,
    "pointnav-small": pointnav.pointnav_small,
    "pointnav-rgb": pointnav.pointnav_rgb,
    "pointnav-rgbd": pointnav.pointnav_rgbd,
    "pointnav-blind": pointnav.pointnav_blind,
    "pointnav-nogps": pointnav.pointnav_nogps,
    "pointnav-paper": pointnav.pointnav_paper,
    "flee": navigation.flee,
    "flee-small": navigation.flee_small,
    "explore": navigation.explore,
    "explore-small": navigation.explore_small,
    "objectnav": navigation.objectnav,
    "objectnav-small": navigation.objectnav_small,
    **rearrangement.recipes(),
    "cartpole": classic.cartpole,
    "memory": classic.memory,
    "duel-selfplay": selfplay.duel_selfplay,
    "halfcheetah": mujoco.halfcheetah,
    "hopper": mujoco.hopper,
    "walker2d": mujoco.walker2d,
    "ant": mujoco.ant,
    "breakout": atari.breakout,
    "pong": atari.pong,
    "qbert": atari.qbert,
    "space_invaders": atari.space_invaders,
    "seaquest": atari.seaquest,
    "pendulum": control.pendulum,
    "parkour_walker": control.parkour_walker,
    "parkour_walker_fast": control.parkour_walker_fast,
    "parkour_humanoid": control.parkour_humanoid,
    "parkour_humanoid_fast": control.parkour_humanoid_fast,
    **control.suite_recipes(),
    **control.hand_recipes(),
    "dmc_pixels": control.dmc_pixels,
    "doom_basic": doom.basic,
    "doom_my_way_home": doom.my_way_home,
    "doom_health_gathering_supreme": doom.health_gathering_supreme,
    "doom_deadly_corridor": doom.deadly_corridor,
    "doom_defend_the_center": doom.defend_the_center,
    "doom_deathmatch_bots": doom.deathmatch_bots,
    "doom_duel_bots": doom.duel_bots,
    "doom_duel": doom.duel,
    "doom_rocket_duel": doom.rocket_duel,
    "doom_deathmatch": doom.deathmatch,
    "doom_battle": doom.battle,
    "doom_battle2": doom.battle2,
}


ENTRY_POINTS = "paceline.recipes"
"""The group in which a package names recipes of its own: `name = "package.module:function"`."""


def find(name: str) -> Config:
    """The configuration of a recipe."""
    name = known_as(name)
    function = _function(name)
    if needed := required_arguments(function):
        raise UsageError(
            f"recipe {name} needs {', '.join(map(repr, needed))}; allowed: a function without required arguments that "
            "returns a paceline.Config"
        )
    config = function()
    if not isinstance(config, Config):
        raise UsageError(f"recipe {name} returns a {type(config).__name__}; allowed: a paceline.Config")
    return config


def known_as(name: str) -> str:
    """The name of a recipe as it is listed. It may be written with - or with _. A function of the user's own,
    `package.module:function` or `./file.py:function`, has no other name."""
    if ":" in name:
        _require_no_environment(name)
        return name
    known = [*RECIPES, *(point.name for point in installed())]
    name = next((one for one in known if one.replace("-", "_") == name.replace("-", "_")), name)
    if name not in known:
        allowed = "`paceline recipes` lists all, or package.module:function for your own"
        raise UsageError(f"recipe {name!r} does not exist{closest(name, known)}; {allowed}")
    return name


def _require_no_environment(name: str) -> None:
    """Refuse an id of an environment. A module of recipes may have the name of a family of another package."""
    family = name.partition(":")[0]
    if family in FAMILIES or (family in families() and not importable(family)):
        raise UsageError(f"{name!r} is an environment and no recipe; allowed: --env {name}")


def installed() -> list[EntryPoint]:
    """The recipes of other packages, by name."""
    return sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name)


def _function(name: str) -> Callable[[], Config]:
    if name in RECIPES:
        return RECIPES[name]
    if ":" in name:
        return _own(name)
    point = next(point for point in installed() if point.name == name)
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise UsageError(f"recipe {name} of the installed package is broken: {point.value}: {error}") from error


def _own(name: str) -> Callable[[], Config]:
    """A function of the user's own."""
    module, _, function = name.rpartition(":")
    try:
        return find_own(module, function, name, "a function that returns a configuration")
    except UsageError as error:
        if name.partition(":")[0] not in families():
            raise
        raise UsageError(f"{error}; the environment of this name is --env {name}") from error
