"""Recipes: one function per experiment, which returns a complete `Config`. `paceline recipes` prints their
docstrings."""

from __future__ import annotations

from collections.abc import Callable

from paceline.config import Config
from paceline.errors import UsageError, closest
from paceline.recipes import atari, classic, control, doom, mujoco, navigation, pointnav, selfplay

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
    **control.suite_recipes(),
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


def find(name: str) -> Config:
    """The configuration of a recipe."""
    return RECIPES[known_as(name)]()


def known_as(name: str) -> str:
    """The name in `RECIPES` of a recipe, which may be written with - or with _."""
    name = next((known for known in RECIPES if known.replace("-", "_") == name.replace("-", "_")), name)
    if name not in RECIPES:
        raise UsageError(f"recipe {name!r} does not exist{closest(name, RECIPES)}; allowed: {', '.join(RECIPES)}")
    return name
