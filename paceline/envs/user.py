"""The user's own environments: `package.module:function`, `./file.py:function`, or any callable.

A function with the parameters `num_envs` and `device` makes that many environments at once, for a `tensor` pool.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.envs.factory import Factory, check_options
from paceline.envs.ids import EnvId
from paceline.errors import UsageError, is_installed
from paceline.own_code import add_to_path, find, find_in_main_program, import_attribute, is_main_program

INDEX = "env_index"
"""A function with a parameter of this name gets the environment's index."""
BATCH = ("num_envs", "device")
"""A function with parameters of these names makes many environments at once."""
BUILDER = "a function or class that builds an environment"


def resolve(env_id: EnvId) -> Factory:
    """The function gets the id's options as keyword arguments. Modules in the current directory can be imported."""
    if is_main_program(env_id.family):
        return _from_main_program(env_id)
    target = find(env_id.family, env_id.name, str(env_id), BUILDER)
    parameters = _check_builder(target, env_id)
    if makes_batches(target):
        make_many = ImportedBatch(env_id.family, env_id.name, os.getcwd(), dict(env_id.options))
        return Factory(make=make_many, backend="tensor", label=str(env_id))
    wants_index = INDEX in parameters
    make = ImportedCall(env_id.family, env_id.name, os.getcwd(), dict(env_id.options), wants_index)
    return Factory(make=make, label=str(env_id))


def _from_main_program(env_id: EnvId) -> Factory:
    """From the script that runs, which is not imported again."""
    target = find_in_main_program(env_id.family, env_id.name, str(env_id), BUILDER)
    _check_builder(target, env_id)
    return replace(from_callable(functools.partial(target, **env_id.options)), label=str(env_id))


def _check_builder(target: Callable[..., Any], env_id: EnvId) -> Mapping[str, inspect.Parameter]:
    """Check the id's options for a function that makes one environment, or many. Returns its parameters."""
    if not makes_batches(target):
        return check_call(target, env_id, given=(INDEX,))
    return check_batch_call(target, env_id)


def from_callable(function: Callable[..., Any]) -> Factory:
    """A factory from a callable. It gets the environment's index if it has a parameter `env_index`. It makes many
    environments at once if it has the parameters of `BATCH`."""
    label = getattr(function, "__qualname__", None) or repr(function)
    if makes_batches(function):
        return Factory(make=BatchCall(function), backend="tensor", label=label)
    parameters = _parameters(function) or {}
    required = [name for name in required_arguments(function) if name != INDEX]
    if required:
        values = ", ".join(f"{name}=..." for name in required)
        raise UsageError(
            f"{label} cannot build environments: it needs {', '.join(map(repr, required))}; allowed: no required "
            f"argument except {INDEX}, which is the environment's index, or num_envs and device for a vector "
            f"environment; for others: env=lambda: {label}({values})"
        )
    return Factory(make=KeywordCall(function) if INDEX in parameters else PlainCall(function), label=label)


def makes_batches(function: Callable[..., Any]) -> bool:
    """Whether a function makes many environments at once, on a device."""
    return set(BATCH) <= set(_parameters(function) or {})


def check_batch_call(function: Callable[..., Any], env_id: EnvId) -> Mapping[str, inspect.Parameter]:
    """As `check_call`, for a function that makes many environments at once."""
    for option, setting in zip(BATCH, ("--pool.num-envs", "--device"), strict=True):
        if option in env_id.options:
            raise UsageError(f"option {option!r} of {str(env_id)!r} is not allowed: {setting} sets it")
    return check_call(function, env_id, given=BATCH)


def importable(module: str) -> bool:
    """Whether a top-level module exists, also in the current directory."""
    add_to_path(os.getcwd())
    return is_installed(module)


@dataclass(frozen=True)
class PlainCall:
    """Calls a function without the environment's index."""

    function: Callable[[], Any]

    def __call__(self, env_index: int) -> Any:
        return self.function()


@dataclass(frozen=True)
class KeywordCall:
    """Calls a function with the environment's index by name."""

    function: Callable[..., Any]

    def __call__(self, env_index: int) -> Any:
        return self.function(env_index=env_index)


@dataclass(frozen=True)
class ImportedCall:
    """Imports a function where it is called, so unpickling it in another process imports nothing."""

    module: str
    attribute: str
    folder: str
    """The current directory when the id was resolved."""
    options: Mapping[str, Any] = field(default_factory=dict)
    wants_index: bool = False

    def __call__(self, env_index: int) -> Any:
        function = import_attribute(self.module, self.attribute, self.folder)
        index = {INDEX: env_index} if self.wants_index else {}
        return function(**{**index, **self.options})


@dataclass(frozen=True)
class BatchCall:
    """Calls a function that makes many environments at once."""

    function: Callable[..., Any]

    def __call__(self, num_envs: int, device: str = "cpu") -> Any:
        return self.function(num_envs=num_envs, device=device)


@dataclass(frozen=True)
class ImportedBatch:
    """Like `ImportedCall`, for a function that makes many environments at once."""

    module: str
    attribute: str
    folder: str
    """The current directory when the id was resolved."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, num_envs: int, device: str = "cpu") -> Any:
        """`num_envs` environments on `device`: a `TensorSimulator` or a Gymnasium `VectorEnv`."""
        make = import_attribute(self.module, self.attribute, self.folder)
        return make(num_envs=num_envs, device=device, **self.options)


def check_call(function: Callable[..., Any], env_id: EnvId, given: tuple[str, ...]) -> Mapping[str, inspect.Parameter]:
    """Check the id's options against the parameters of `function`, which also gets `given`. Returns the parameters."""
    parameters = _parameters(function)
    if parameters is None:
        return {}
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        check_options(env_id, [name for name, p in parameters.items() if p.kind in named])
    missing = [name for name in required_arguments(function) if name not in env_id.options and name not in given]
    if missing:
        raise UsageError(
            f"{str(env_id)!r} needs {', '.join(map(repr, missing))}; give them as options: "
            f"{env_id.family}:{env_id.name}?{'&'.join(f'{name}=...' for name in missing)}"
        )
    return parameters


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    try:
        return inspect.signature(function).parameters
    except (ValueError, TypeError):  # some built-in callables have no signature
        return None


def required_arguments(function: Callable[..., Any]) -> list[str]:
    """The parameters of a function that have no default."""
    parameters = _parameters(function) or {}
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [name for name, p in parameters.items() if p.default is inspect.Parameter.empty and p.kind not in variadic]
