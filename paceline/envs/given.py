"""Environments that are given as Python objects: a class, or a function that makes one environment.

A run remembers its environment by an id. An object that can be imported has one, `package.module:Name`, or
`/path/to/script.py:Name` if the script that runs defines it. Others, such as a class in a notebook or a lambda, get the
id `python:Name`. It cannot be resolved: who continues or evaluates such a run gives the object again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.errors import UsageError
from paceline.own_code import PYTHON, import_path

FAMILY = PYTHON
"""Of ids of objects that cannot be imported."""


def id_of(env: Callable[..., Any]) -> str:
    """The id of an environment that is given as an object."""
    require_maker(env)
    return import_path(env)


def refusal(env_id: str) -> UsageError:
    """Why an id of the family `python` names no environment."""
    name = env_id.partition(":")[2]
    return UsageError(
        f"the environment {name!r} was an object in a Python program, and its id {env_id!r} cannot be imported; give "
        f"the object again, as env={name}, or an importable one: --env package.module:{name}"
    )


def require_maker(env: Any) -> None:
    """Refuse an object that makes no environments, for example an environment."""
    if not callable(env):
        raise UsageError(
            f"env is a {type(env).__name__}; allowed: an id, a class, or a function that makes one environment"
        )
