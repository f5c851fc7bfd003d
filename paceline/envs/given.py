"""Environments that are given as Python objects: a class, or a function that makes one environment.

A run remembers its environment by an id. An object that can be imported has one, `package.module:Name`, or
`/path/to/script.py:Name` if the script that runs defines it. Others, such as a class in a notebook or a lambda, get the
id `python:Name`. It cannot be resolved: who continues or evaluates such a run gives the object again.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.errors import UsageError

FAMILY = "python"
"""Of ids of objects that cannot be imported."""


def id_of(env: Callable[..., Any]) -> str:
    """The id of an environment that is given as an object."""
    if not callable(env):
        raise UsageError(
            f"env is a {type(env).__name__}; allowed: an id, a class, or a function that makes environments"
        )
    module, name = getattr(env, "__module__", None) or "", getattr(env, "__qualname__", None) or type(env).__name__
    if module == "__main__":
        path = getattr(sys.modules["__main__"], "__file__", None)
        if path is not None and _is_attribute(sys.modules["__main__"], name, env):
            return f"{Path(path).resolve()}:{name}"
    elif module and _is_attribute(sys.modules.get(module), name, env) and _can_import(module):
        return f"{module}:{name}"
    return f"{FAMILY}:{name}"


def refusal(env_id: str) -> UsageError:
    """Why an id of the family `python` names no environment."""
    name = env_id.partition(":")[2]
    return UsageError(
        f"the environment {name!r} was an object in a Python program, and its id {env_id!r} cannot be imported; give "
        f"the object again, as env={name} in Python, or an importable one: --env package.module:{name}"
    )


def _is_attribute(module: Any, name: str, env: Any) -> bool:
    """Whether `name`, which may have dots, is `env` in the module. A function in a function has no such name."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is env


def _can_import(module: str) -> bool:
    """Whether another program finds the same module. One made at run time has no file and no finder."""
    spec = getattr(sys.modules[module], "__spec__", None)
    return spec is not None and spec.origin is not None and importlib.util.find_spec(module) is not None
