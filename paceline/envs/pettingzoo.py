"""`pettingzoo:module`: multi-agent environments of PettingZoo.

The module has `parallel_env`, where all agents act at once, or only `env`, where they take turns (the AEC API).
PettingZoo's own modules need no leading `pettingzoo.`: `pettingzoo:butterfly.pistonball_v6`.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
import re
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

from paceline.envs.factory import Factory, check_options, needs
from paceline.envs.ids import EnvId
from paceline.errors import MissingExtra, UsageError, closest

OWN = "pettingzoo"


def names() -> list[str]:
    """PettingZoo's own modules, found without importing them."""
    with needs("pettingzoo"):
        import pettingzoo
    found = []
    for family in pkgutil.iter_modules(pettingzoo.__path__):
        folder = [f"{path}/{family.name}" for path in pettingzoo.__path__]
        found += [f"{OWN}.{family.name}.{module.name}" for module in pkgutil.iter_modules(folder)]
    return [name for name in found if re.search(r"_v\d+$", name)]


def resolve(env_id: EnvId) -> Factory:
    known = names()
    module_name = f"{OWN}.{env_id.name}" if f"{OWN}.{env_id.name}" in known else env_id.name
    module = _import(module_name, env_id, known)
    maker = next((name for name in ("parallel_env", "env") if callable(getattr(module, name, None))), None)
    if maker is None:
        raise UsageError(
            f"module {module_name!r} of {str(env_id)!r} has neither parallel_env nor env, which make an environment"
        )
    _check_arguments(module, maker, env_id)
    return Factory(make=partial(_make, module_name, maker, dict(env_id.options)), label=str(env_id))


def named_code(env_id: EnvId) -> str | None:
    """The user installed PettingZoo's own modules. Any other module is imported because the id names it."""
    if {env_id.name, f"{OWN}.{env_id.name}"} & set(names()):
        return None
    return f"import the module {env_id.name!r}"


def _make(module_name: str, maker: str, options: Mapping[str, Any], env_index: int) -> Any:
    # It warns of every illegal move, which is only a lost game.
    logging.getLogger("pettingzoo.utils.env_logger").setLevel(logging.ERROR)
    return getattr(_quiet_import(module_name), maker)(**options)


def _quiet_import(module_name: str) -> Any:
    with warnings.catch_warnings():
        # PettingZoo deprecates such imports in favour of a registry, which third-party modules do not have.
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(module_name)


def _import(module_name: str, env_id: EnvId, known: list[str]) -> Any:
    try:
        return _quiet_import(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name != missing and not module_name.startswith(f"{missing}."):
            if module_name in known:
                raise MissingExtra(repr(str(env_id)), "pettingzoo", error) from error
            raise UsageError(f"{str(env_id)!r} needs a module that is not installed: {error}") from error
        short = [name.removeprefix(f"{OWN}.") for name in known]
        raise UsageError(
            f"module {env_id.name!r} of {str(env_id)!r} does not exist{closest(env_id.name, [*known, *short])}; "
            "`paceline envs` lists those of PettingZoo"
        ) from error


def _check_arguments(module: Any, maker: str, env_id: EnvId) -> None:
    # PettingZoo's own functions pass all arguments to raw_env, which has the names.
    for function in (getattr(module, maker), getattr(module, "raw_env", None)):
        if function is None:
            return
        parameters = inspect.signature(function).parameters.values()
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            named = [p.name for p in parameters if p.kind is not inspect.Parameter.VAR_POSITIONAL]
            check_options(env_id, named)
            return
