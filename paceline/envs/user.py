"""The user's own environments: `package.module:function`, or any callable."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.envs.ids import EnvId
from paceline.envs.registry import Factory, check_options, closest
from paceline.errors import UsageError

INDEX = "env_index"
"""A function with a parameter of this name is told the environment's index."""


def resolve(env_id: EnvId) -> Factory:
    """The function is called with the id's options as keyword arguments. The current directory is importable."""
    _add_to_path(os.getcwd())
    function = _find(env_id)
    parameters = _parameters(function)
    if parameters is not None:
        _check_call(function, parameters, env_id)
    make = ImportedCall(
        module=env_id.family,
        attribute=env_id.name,
        options=dict(env_id.options),
        folder=os.getcwd(),
        wants_index=parameters is not None and INDEX in parameters,
    )
    return Factory(make=make, label=str(env_id))


def from_callable(function: Callable[..., Any]) -> Factory:
    """A factory from a callable of no argument, of one required argument (the environment's index) or of `env_index`."""
    label = getattr(function, "__qualname__", None) or repr(function)
    parameters = _parameters(function) or {}
    if INDEX in parameters:
        return Factory(make=KeywordCall(function), label=label)
    required = _required(parameters)
    if len(required) > 1:
        raise UsageError(
            f"{label} cannot build environments: it needs {', '.join(map(repr, required))}; "
            "allowed: no required argument, or one, which is the environment's index"
        )
    return Factory(make=function if required else PlainCall(function), label=label)


def importable(module: str) -> bool:
    """Whether a top-level module exists, the current directory included."""
    _add_to_path(os.getcwd())
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@dataclass(frozen=True)
class PlainCall:
    """Calls a function that does not care for the environment's index."""

    function: Callable[[], Any]

    def __call__(self, env_index: int) -> Any:
        return self.function()


@dataclass(frozen=True)
class KeywordCall:
    """Calls a function that takes the environment's index by name."""

    function: Callable[..., Any]

    def __call__(self, env_index: int) -> Any:
        return self.function(env_index=env_index)


@dataclass(frozen=True, kw_only=True)
class ImportedCall:
    """Imports a function where it is called, so that shipping it to another process imports nothing there."""

    module: str
    attribute: str
    folder: str
    """What was the current directory when the id was resolved."""
    options: Mapping[str, Any] = field(default_factory=dict)
    wants_index: bool = False

    def __call__(self, env_index: int) -> Any:
        _add_to_path(self.folder)
        function: Any = importlib.import_module(self.module)
        for name in self.attribute.split("."):
            function = getattr(function, name)
        index = {INDEX: env_index} if self.wants_index else {}
        return function(**{**index, **self.options})


def _add_to_path(folder: str) -> None:
    # At the end: a file of the user's must not hide a package by accident.
    if folder not in sys.path:
        sys.path.append(folder)


def _find(env_id: EnvId) -> Callable[..., Any]:
    try:
        found: Any = importlib.import_module(env_id.family)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if env_id.family != missing and not env_id.family.startswith(f"{missing}."):
            raise UsageError(
                f"module {env_id.family!r} of {str(env_id)!r} needs a module that is not installed: {error}"
            ) from error
        raise UsageError(
            f"module {env_id.family!r} of {str(env_id)!r} does not exist ({error}); "
            f"it is looked for in the current directory ({os.getcwd()}) and among the installed packages"
        ) from error
    for name in env_id.name.split("."):
        if not hasattr(found, name):
            public = [attribute for attribute in dir(found) if not attribute.startswith("_")]
            raise UsageError(
                f"module {env_id.family!r} has no {env_id.name!r}, which {str(env_id)!r} asks for{closest(name, public)}"
            )
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(
            f"{str(env_id)!r} is a {type(found).__name__}; allowed: a function or class that builds an environment"
        )
    return found


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # some built-in callables have none
        return None


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and p.kind not in variadic]


def _check_call(function: Callable[..., Any], parameters: Mapping[str, inspect.Parameter], env_id: EnvId) -> None:
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        check_options(env_id, [name for name, p in parameters.items() if p.kind in named])
    missing = [name for name in _required(parameters) if name not in env_id.options and name != INDEX]
    if missing:
        raise UsageError(
            f"{str(env_id)!r} needs {', '.join(map(repr, missing))}; give them as options: "
            f"{env_id.family}:{env_id.name}?{'&'.join(f'{name}=...' for name in missing)}"
        )
