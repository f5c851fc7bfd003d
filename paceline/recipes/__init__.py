"""Recipes: one function per experiment, returning a complete `Config`. Its first line says what it is for."""

from __future__ import annotations

from collections.abc import Callable

from paceline.config import Config
from paceline.envs.registry import closest
from paceline.errors import UsageError
from paceline.recipes import atari, classic, mujoco, pointnav

RECIPES: dict[str, Callable[[], Config]] = {
    "pointnav": pointnav.pointnav,
    "pointnav-small": pointnav.pointnav_small,
    "cartpole": classic.cartpole,
    "memory": classic.memory,
    "halfcheetah": mujoco.halfcheetah,
    "breakout": atari.breakout,
}


def find(name: str) -> Config:
    """The configuration of a recipe."""
    if name not in RECIPES:
        raise UsageError(f"recipe {name!r} does not exist{closest(name, RECIPES)}; allowed: {', '.join(RECIPES)}")
    return RECIPES[name]()
