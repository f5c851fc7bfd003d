"""`gym:ID`: any registered Gymnasium environment. Options are its keyword arguments.

Workers get the registration itself, so an environment that was registered only in the main process works in them too.
`gym:module:ID` imports `module` first, for packages that register environments at import.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
from functools import partial
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from paceline.envs.factory import Factory, check_options
from paceline.envs.ids import EnvId
from paceline.envs.mujoco_rendering import choose_renderer
from paceline.envs.options import has_text
from paceline.errors import UsageError, closest, extra_hint

log = logging.getLogger(__name__)

MAX_EPISODE_STEPS = "max_episode_steps"
"""The only option of Gymnasium instead of the environment; -1 for no limit."""


def names() -> list[str]:
    return sorted(gymnasium.registry)


def resolve(env_id: EnvId) -> Factory:
    spec = _find(env_id)
    creator = _load_creator(spec, env_id)
    _check_arguments(creator, env_id)
    arguments = dict(env_id.options)
    limit = arguments.pop(MAX_EPISODE_STEPS, spec.max_episode_steps)
    if limit is not None and (type(limit) is not int or (limit < 1 and limit != -1)):
        raise UsageError(
            f"option {MAX_EPISODE_STEPS!r} of {str(env_id)!r} is {limit!r}; "
            "allowed: a positive integer, or -1 for no limit"
        )
    spec = dataclasses.replace(
        spec,
        # By value if a child process could not import it by name.
        entry_point=creator if str(spec.entry_point).startswith("__main__:") else spec.entry_point,
        kwargs={**spec.kwargs, **arguments},
        max_episode_steps=None if limit == -1 else limit,
        # The pool checks what environments return, and resets before it steps.
        disable_env_checker=True,
        order_enforce=False,
    )
    return Factory(make=partial(_make, spec, str(env_id)), label=str(env_id))


def named_code(env_id: EnvId) -> str | None:
    """`gym:module:ID` imports the module. Other environments than Gymnasium's own may run code that an option names."""
    module, _, name = env_id.name.rpartition(":")
    if module:
        return f"import the module {module!r}"
    spec = gymnasium.registry.get(name)
    of_gymnasium = spec is not None and str(spec.entry_point).startswith("gymnasium.envs.")
    if not of_gymnasium and has_text([*env_id.options.values()]):
        return f"give {name!r} texts, which may be the names of modules or programs"
    return None


def _make(spec: EnvSpec, label: str, env_index: int) -> gymnasium.Env:
    if str(spec.entry_point).startswith("gymnasium.envs.mujoco"):
        choose_renderer()
        mujoco_warnings_to_log()
    try:
        return gymnasium.make(spec)
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(label, error) from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise UsageError(f"an option of {label!r} does not exist: {error}") from error


def mujoco_warnings_to_log() -> None:
    """Log each of MuJoCo's warnings once. By default every instance warns and writes MUJOCO_LOG.TXT."""
    try:
        import mujoco
    except ImportError:
        return  # making the environment raises a clear error
    seen: set[str] = set()

    def handle(text: str) -> None:
        if text not in seen:
            seen.add(text)
            log.log(logging.DEBUG if "deprecated" in text else logging.WARNING, "MuJoCo: %s", text)

    if mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(handle)


def _find(env_id: EnvId) -> EnvSpec:
    module, _, name = env_id.name.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except ImportError as error:
            hint = extra_hint(error)
            raise UsageError(f"module {module!r} of {str(env_id)!r} cannot be imported: {error}{hint}") from error
    spec = gymnasium.registry.get(name)
    if spec is None:
        raise UsageError(
            f"{name!r} of {str(env_id)!r} is not a registered Gymnasium environment{closest(name, names())}; "
            "gym:module:ID imports the module that registers it first"
        )
    return spec


def _load_creator(spec: EnvSpec, env_id: EnvId) -> Any:
    """The environment's entry point. Importing it here finds most missing dependencies before a worker starts."""
    if callable(spec.entry_point):
        return spec.entry_point
    if spec.entry_point is None:
        raise UsageError(f"{str(env_id)!r} is registered without an entry point, for vectorised use only")
    try:
        return load_env_creator(spec.entry_point)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:
        raise _missing(str(env_id), error) from error


def _check_arguments(creator: Any, env_id: EnvId) -> None:
    try:
        parameters = inspect.signature(creator).parameters.values()
    except (ValueError, TypeError):  # some built-in callables have no signature
        return
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        check_options(env_id, [*(parameter.name for parameter in parameters), MAX_EPISODE_STEPS])


def _missing(label: str, error: Exception) -> UsageError:
    return UsageError(f"{label!r} needs a package that is not installed: {error}{extra_hint(error)}")
