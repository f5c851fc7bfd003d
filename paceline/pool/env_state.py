"""The exact state of one environment object, to continue it later in a freshly made one.

An environment may consist of several objects: wrappers, the simulator that an adapter holds, the game in a conversion
of PettingZoo. Each of these parts keeps its identity: the state has their attributes, and names the parts themselves by
their numbers. So a reference back to the environment is one to the fresh environment after the restore.

The fresh environment may hold another object in the place of a part, for example because each reset chooses one of
several tasks. Then the restore makes an object of the saved class.
"""

from __future__ import annotations

import importlib
import inspect
import io
import operator
import pickle
from typing import Any, NamedTuple

from gymnasium.utils import EzPickle

from paceline.errors import UsageError


class UnreadableState(UsageError):
    """A saved state cannot be loaded in this program, for example because it holds a class of another program."""


RENDERING = ("spec", "_cached_spec", "mujoco_renderer", "viewer", "screen", "clock", "surf")
"""Attributes that Gymnasium's environments have for pictures, and that cannot be saved."""
LIBRARIES = ("gymnasium", "pygame", "mujoco", "pyglet", "glfw", "OpenGL")
"""Attributes of these names are left out only if their classes are of one of these packages."""


class _Part(NamedTuple):
    """One object of an environment, and where it is."""

    env: Any
    owner: int | None
    """The number of the part that holds it. None for the layers of wrappers."""
    attribute: str

    @property
    def saves_itself(self) -> bool:
        """Some wrappers have all methods of what they wrap, so the state of a wrapper is its attributes."""
        return len(layers(self.env)) == 1 and provides_state(self.env)


class _Saved(NamedTuple):
    """The state of one part."""

    own: Any
    """What its `get_state` returned; None without `get_state`."""
    attributes: dict[str, Any] | None
    """None with `get_state`."""
    left_out: list[str]
    """The attributes for pictures."""


def env_state(env: Any) -> bytes:
    """The exact state of an environment.

    A part may provide it (`get_state() -> object` with `set_state(object)`). Otherwise the state is its attributes.
    Pickling a part would be wrong, because Gymnasium's `EzPickle` environments (all of MuJoCo's and Box2D's) come back
    freshly made.
    """
    found = _parts(env)
    saved = [tuple(_save(part)) for part in found]
    file = io.BytesIO()
    try:
        pickle.dump([(part.owner, part.attribute, _class_name(part.env)) for part in found], file)
        _Pickler(file, [part.env for part in found]).dump(saved)
    except Exception as error:
        raise UsageError(
            f"the state of {env} cannot be saved ({type(error).__name__}: {error}); "
            "give the environment get_state() and set_state(state)"
        ) from error
    return file.getvalue()


def _save(part: _Part) -> _Saved:
    if part.saves_itself:
        return _Saved(part.env.get_state(), None, [])
    left_out = [name for name, value in vars(part.env).items() if _is_for_pictures(name, value)]
    return _Saved(None, {name: value for name, value in vars(part.env).items() if name not in left_out}, left_out)


def restore_env(env: Any, state: bytes) -> None:
    """Put `env`, freshly made by the same factory, into `state`. After `UnreadableState` it needs a reset."""
    pairs = _load(env, state)
    try:
        for part, saved in pairs:
            if saved.attributes is None:
                part.set_state(saved.own)
    except Exception as error:
        raise UnreadableState(f"set_state of {env} failed ({type(error).__name__}: {error})") from error
    for part, saved in pairs:
        if saved.attributes is not None:
            vars(part).update(saved.attributes)


def _load(env: Any, state: bytes) -> list[tuple[Any, _Saved]]:
    """The parts that take the state, with what each takes. `env` is as before."""
    file = io.BytesIO(state)
    try:
        counterparts = _Counterparts(env, pickle.load(file))
        found = [_Saved(*fields) for fields in _Unpickler(file, counterparts.parts).load()]
    except UnreadableState:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise UnreadableState(f"the saved simulators cannot be loaded in this program ({cause})") from error
    for number, (part, saved) in enumerate(zip(counterparts.parts, found, strict=True)):
        is_made = number in counterparts.made
        if saved.attributes is not None:
            if is_made:
                _complete(part, saved.attributes, saved.left_out)
        elif not provides_state(part):
            raise UnreadableState(f"the saved simulators had get_state and set_state, and {env} has no set_state")
        elif is_made:  # only a complete object can take it
            raise UnreadableState(f"the saved simulators held a {_class_name(part)}, and {env} does not")
    return list(zip(counterparts.parts, found, strict=True))


class _Counterparts:
    """The objects that take the states of the saved parts."""

    def __init__(self, env: Any, places: list[tuple[int | None, str, str]]) -> None:
        """`places` has the owner, the attribute and the class of each saved part."""
        self.parts = layers(env)
        self.made: set[int] = set()
        """The numbers of parts that `env` does not hold. They have no attributes yet."""
        before = [name for owner, _, name in places if owner is None]
        now = [_class_name(layer) for layer in self.parts]
        # The class of the outermost one may have been renamed: the factory has made it.
        if len(before) != len(now) or before[1:] != now[1:]:
            layers_of = " > ".join
            raise UnreadableState(f"the saved simulators were {layers_of(before)}, and these are {layers_of(now)}")
        for owner, attribute, name in places[len(before) :]:
            assert owner is not None
            held = _own_attributes(self.parts[owner]).get(attribute)
            if _class_name(held) != name or _is_among(held, self.parts):
                self.made.add(len(self.parts))
                cls = _class_of(name)
                held = cls.__new__(cls)
            self.parts.append(held)


def _complete(part: Any, attributes: dict[str, Any], left_out: list[str]) -> None:
    """Give an object without attributes those that are not in its saved `attributes`."""
    try:
        if isinstance(part, EzPickle):
            part.__setstate__(attributes)  # its constructor makes them
        else:
            vars(part).update(dict.fromkeys(left_out))
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise UnreadableState(f"the saved simulators' {_class_name(part)} cannot be made ({cause})") from error


def _class_name(part: Any) -> str:
    """`module:Class`. A process that Python spawned has another name for the main module."""
    cls = type(part)
    return f"{'__main__' if cls.__module__ == '__mp_main__' else cls.__module__}:{cls.__qualname__}"


def _class_of(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return operator.attrgetter(qualname)(importlib.import_module(module))


def provides_state(part: Any) -> bool:
    """Whether it has `get_state()` and `set_state(state)`. In MuJoCo's environments `set_state` has two arguments."""
    try:
        get_state, set_state = part.get_state, part.set_state
    except Exception:  # of a __getattr__
        return False
    return _takes(get_state) and _takes(set_state, None)


def _takes(method: Any, *arguments: Any) -> bool:
    try:
        inspect.signature(method).bind(*arguments)
    except ValueError:  # a compiled method may have no signature
        return True
    except TypeError:
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
    return [part.env for part in _parts(env)]


def _parts(env: Any) -> list[_Part]:
    found = [_Part(layer, None, "") for layer in layers(env)]
    for number, part in enumerate(found):  # grows meanwhile
        if part.saves_itself:
            continue
        for name, value in vars(part.env).items():
            is_new = _is_environment(value) and not _is_among(value, [one.env for one in found])
            if is_new and not _is_for_pictures(name, value) and (provides_state(value) or not _pickles_itself(value)):
                found.append(_Part(value, number, name))
    return found


def _is_among(part: Any, others: list[Any]) -> bool:
    return any(part is other for other in others)


def _is_environment(value: Any) -> bool:
    """Of Gymnasium or PettingZoo. Other simulators are pickled as they wish to be."""
    if inspect.isclass(value) or _own_attributes(value) is NO_ATTRIBUTES:
        return False
    return all(_defines(value, name) for name in ("unwrapped", "reset", "step"))


def _defines(value: Any, name: str) -> bool:
    """Whether it has an attribute, without a call of `__getattr__`, which may do anything."""
    return any(name in vars(cls) for cls in type(value).__mro__) or name in _own_attributes(value)


NO_ATTRIBUTES: dict[str, Any] = {}


def _own_attributes(value: Any) -> dict[str, Any]:
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return NO_ATTRIBUTES


def _pickles_itself(value: Any) -> bool:
    """Whether its class decides what is pickled, for example everything but a lock."""
    cls = type(value)
    return any(
        getattr(cls, name, None) not in (getattr(object, name, None), getattr(EzPickle, name, None))
        for name in ("__getstate__", "__reduce__", "__reduce_ex__")
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
