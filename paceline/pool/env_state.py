"""The exact state of one environment object, to continue it later in a freshly made one.

An environment may consist of several objects: wrappers, the simulator that an adapter holds, the game in a conversion
of PettingZoo. Each of these parts keeps its identity: the state has their attributes, and names the parts themselves by
their numbers. So a reference back to the environment is one to the fresh environment after the restore.
"""

from __future__ import annotations

import inspect
import io
import pickle
from typing import Any

from paceline.errors import UsageError


class UnreadableState(UsageError):
    """A saved state cannot be loaded in this program, for example because it holds a class of another program."""


RENDERING = ("spec", "_cached_spec", "mujoco_renderer", "viewer", "screen", "clock", "surf")
"""Attributes that Gymnasium's environments have for pictures, and that cannot be saved."""
LIBRARIES = ("gymnasium", "pygame", "mujoco", "pyglet", "glfw", "OpenGL")
"""Attributes of these names are left out only if their classes are of one of these packages."""


def env_state(env: Any) -> bytes:
    """The exact state of an environment.

    A part may provide it (`get_state() -> object` with `set_state(object)`). Otherwise the state is its attributes.
    Pickling a part would be wrong, because Gymnasium's `EzPickle` environments (all of MuJoCo's and Box2D's) come back
    freshly made.
    """
    found = []
    wrappers = layers(env)[:-1]  # some have all attributes of what they wrap
    for part in parts(env):
        if provides_state(part) and not _is_among(part, wrappers):
            found.append(("state", part.get_state()))
        else:
            attributes = {key: value for key, value in vars(part).items() if not _is_for_pictures(key, value)}
            found.append(("attributes", attributes))
    file = io.BytesIO()
    try:
        _Pickler(file, parts(env)).dump(found)
    except Exception as error:
        raise UsageError(
            f"the state of {env} cannot be saved ({type(error).__name__}: {error}); "
            "give the environment get_state() and set_state(state)"
        ) from error
    return file.getvalue()


def restore_env(env: Any, state: bytes) -> None:
    """Put `env`, freshly made by the same factory, into `state`. After `UnreadableState` it needs a reset."""
    own = parts(env)
    try:
        saved = _Unpickler(io.BytesIO(state), own).load()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise UnreadableState(f"the saved simulators cannot be loaded in this program ({cause})") from error
    if len(saved) != len(own):
        raise UnreadableState(f"the saved simulators consisted of {len(saved)} environments, and {env} of {len(own)}")
    pairs = list(zip(own, saved, strict=True))
    if any(kind == "state" and not provides_state(part) for part, (kind, _) in pairs):
        raise UnreadableState(f"the saved simulators had get_state and set_state, and {env} has no set_state")
    try:
        for part, (kind, value) in pairs:
            if kind == "state":
                part.set_state(value)
    except Exception as error:
        raise UnreadableState(f"set_state of {env} failed ({type(error).__name__}: {error})") from error
    for part, (kind, value) in pairs:
        if kind == "attributes":
            vars(part).update(value)


def provides_state(part: Any) -> bool:
    """Whether it has `get_state()` and `set_state(state)`. In MuJoCo's environments `set_state` has two arguments."""
    if not (hasattr(part, "get_state") and hasattr(part, "set_state")):
        return False
    try:
        inspect.signature(part.get_state).bind()
        inspect.signature(part.set_state).bind(None)
    except (TypeError, ValueError):
        return False
    return True


def layers(env: Any) -> list[Any]:
    """`env` and all that it wraps, outermost first."""
    found = [env]
    while found[-1] is not env.unwrapped and hasattr(found[-1], "env"):
        found.append(found[-1].env)
    return found


def parts(env: Any) -> list[Any]:
    """The layers of `env`, and the environments that they hold as attributes. Those of a part that provides its state
    are its own affair."""
    found = layers(env)
    wrappers = found[:-1]
    for part in found:  # grows meanwhile
        if provides_state(part) and not _is_among(part, wrappers):
            continue
        for value in vars(part).values():
            if _is_environment(value) and not _is_among(value, found):
                found.append(value)
    return found


def _is_among(part: Any, others: list[Any]) -> bool:
    return any(part is other for other in others)


def _is_environment(value: Any) -> bool:
    """Of Gymnasium or PettingZoo. Other simulators are pickled as they wish to be."""
    return all(hasattr(value, name) for name in ("unwrapped", "reset", "step", "__dict__")) and not inspect.isclass(
        value
    )


def _is_for_pictures(name: str, value: Any) -> bool:
    return name in RENDERING and type(value).__module__.partition(".")[0] in LIBRARIES


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, env_parts: list[Any]) -> None:
        super().__init__(file)
        self._number_of = {id(part): number for number, part in enumerate(env_parts)}

    def persistent_id(self, value: Any) -> int | None:
        return self._number_of.get(id(value))


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, env_parts: list[Any]) -> None:
        super().__init__(file)
        self._parts = env_parts

    def persistent_load(self, number: Any) -> Any:
        return self._parts[number]
