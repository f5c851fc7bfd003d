"""The exact state of one environment object, to continue it later in a freshly made one."""

from __future__ import annotations

import pickle
from typing import Any

from paceline.errors import UsageError


class UnreadableState(UsageError):
    """A saved state cannot be loaded in this program, for example because it holds a class of another program."""


def env_state(env: Any) -> bytes:
    """The exact state of an environment.

    An environment may provide it (`get_state() -> object` with `set_state(object)`). Otherwise the state is the
    attributes of every layer of wrappers. Pickling the environment would be wrong, because Gymnasium's `EzPickle`
    environments (all of MuJoCo's and Box2D's) come back freshly made.
    """
    found = []
    for layer in layers(env):
        if layer is env.unwrapped and hasattr(layer, "get_state") and hasattr(layer, "set_state"):
            found.append(("state", layer.get_state()))
        else:
            found.append(("attributes", {key: value for key, value in vars(layer).items() if key not in _NOT_STATE}))
    try:
        return pickle.dumps(found)
    except Exception as error:
        raise UsageError(
            f"the state of {env} cannot be saved ({type(error).__name__}: {error}); "
            "give the environment get_state() and set_state(state)"
        ) from error


_NOT_STATE = ("env", "par_env", "spec", "_cached_spec", "mujoco_renderer", "viewer", "screen", "clock", "surf")


def restore_env(env: Any, state: bytes) -> None:
    """Put `env`, freshly made by the same factory, into `state`. After `UnreadableState` it is as before."""
    try:
        saved = pickle.loads(state)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise UnreadableState(f"the saved simulators cannot be loaded in this program ({cause})") from error
    own = layers(env)
    if len(saved) != len(own):
        raise UnreadableState(f"the saved simulators had {len(saved) - 1} wrappers, and {env} has {len(own) - 1}")
    for layer, (kind, value) in zip(own, saved, strict=True):
        if kind == "state":
            layer.set_state(value)
        else:
            vars(layer).update(value)


def layers(env: Any) -> list[Any]:
    """`env` and all that it wraps, outermost first."""
    found = [env]
    while found[-1] is not env.unwrapped and hasattr(found[-1], "env"):
        found.append(found[-1].env)
    return found
