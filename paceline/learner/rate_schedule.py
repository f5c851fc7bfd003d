"""Schedules of the learning rate: by name, or a function or class of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from paceline.errors import UsageError
from paceline.nets.registry import build_function

OPTION = "optimizer.schedule"
CHECKED_AT = (0.0, 0.5, 1.0)
"""A schedule of the user's own is called with these shares of a run before training."""


class RateSchedule(Protocol):
    """A schedule of the learning rate: a function, or a class that is made without arguments.

    The same progress must always give the same factor: a resumed run makes the schedule anew.
    """

    def __call__(self, progress: float) -> float:
        """The factor of `optimizer.learning_rate`, from 0, after a share `progress` (0 to 1) of the run."""
        ...


def constant(progress: float) -> float:
    return 1.0


def linear(progress: float) -> float:
    return 1 - progress


def cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * progress))


SCHEDULES: dict[str, RateSchedule] = {"constant": constant, "linear": linear, "cosine": cosine}


def make_rate_schedule(name: str) -> RateSchedule:
    """The schedule that `optimizer.schedule` names. One of the user's own is checked."""
    if name in SCHEDULES:
        return SCHEDULES[name]
    schedule = OwnSchedule(name, build_function(OPTION, name, "a schedule", "(progress)", 0.0))
    for progress in CHECKED_AT:
        schedule(progress)
    return schedule


class OwnSchedule:
    """A schedule of the user's own. Every factor is checked."""

    def __init__(self, name: str, function: Callable[[float], Any]) -> None:
        self._name, self._function = name, function

    def __call__(self, progress: float) -> float:
        factor = self._function(progress)
        try:
            number = float(factor)
        except (TypeError, ValueError):
            number = math.nan
        if not 0 <= number < math.inf:
            raise UsageError(f"{OPTION} {self._name} gives {factor!r} at {progress:g}; allowed: a finite number from 0")
        return number
