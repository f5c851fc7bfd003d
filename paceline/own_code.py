"""Classes and functions of the user's own: environments, recipes, and parts of networks and of learning.

A run remembers them by import path: `package.module:Name`, or `/path/to/file.py:Name`. The command line takes these
paths, Python also takes the objects. An object that cannot be imported, such as a class of a notebook, has the path
`python:Name`. It is found only in the program in which it was given: who continues or loads such a run gives it again.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.errors import UsageError, closest, extra_hint

PYTHON = "python"
"""The module in paths of objects that cannot be imported."""
SEARCHED = "the current directory ({}) and among the installed packages"
"""Where modules are looked for, in words."""
_NAME = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_PATH = re.compile(rf"({_NAME}|.+\.py):{_NAME}|{PYTHON}:.+")
_given: dict[str, Any] = {}
"""Objects that cannot be imported, by path."""
_given_by_name: dict[str, Any] = {}
"""Objects for runs that remember one of this name that cannot be imported."""
_files: dict[str, Path] = {}
"""Files that were imported by path, by the name of their module."""
_being_imported: list[str] = []
"""Files and modules that are being imported for what they define."""


def is_path(name: str) -> bool:
    """Whether `name` is written as an import path. Nothing is imported."""
    return _PATH.fullmatch(name) is not None


def is_importable(name: str) -> bool:
    """Whether `name` is an import path that another program can follow."""
    return is_path(name) and not name.startswith(f"{PYTHON}:")


def check_choice(option: str, name: str, known: Sequence[str], kind: str = "Class") -> None:
    """Refuse a name that is neither known nor an import path. Nothing is imported."""
    if name not in known and not is_path(name):
        raise UsageError(
            f"{option} {name!r} does not exist; allowed: {', '.join(known)}, or package.module:{kind} for your own"
        )


def write_paths(settings: Any, *fields: str) -> None:
    """Replace classes and functions in fields of a configuration by their import paths, and paths of files by absolute
    ones. For `__post_init__` of frozen dataclasses."""
    for name in fields:
        value = getattr(settings, name)
        paths = tuple(map(path_of, value)) if isinstance(value, tuple) else path_of(value)
        object.__setattr__(settings, name, paths)


def path_of(thing: Any) -> str:
    """The import path of a class or a function, which `load` finds by it. A string stays, but for paths of files, which
    become absolute."""
    if isinstance(thing, str):
        return with_absolute_path(thing)
    if not inspect.isclass(thing) and not inspect.isroutine(thing):
        raise UsageError(
            f"{thing!r:.80} is no part of a run; allowed: a class, a function, or its import path package.module:Name"
        )
    if thing.__name__ == "<lambda>":
        raise UsageError("a lambda has no name, by which a run could remember it; allowed: a function made with def")
    path = import_path(thing)
    if not is_importable(path):
        if "<locals>" in path and _given.get(path, thing) is not thing:
            raise UsageError(
                f"two objects are named {thing.__qualname__}, and a run remembers them by name; allowed: different "
                "names, for example by __qualname__, or a class with options"
            )
        _given[path] = thing
    return path


def give(thing: Any) -> None:
    """Let a run find an object of a notebook or another program by its name, even if it is in a module now."""
    path_of(thing)
    _given_by_name[thing.__name__] = thing


def is_moved(before: Any, now: Any) -> bool:
    """Whether two import paths may name the same object, in another file or module."""
    both = isinstance(before, str) and isinstance(now, str) and is_path(before) and is_path(now)
    return both and re.split(r"[:.]", before)[-1] == re.split(r"[:.]", now)[-1]


def import_path(thing: Callable[..., Any]) -> str:
    """The import path of an object, or `python:Name` if it cannot be imported."""
    module = getattr(thing, "__module__", None) or ""
    name = getattr(thing, "__qualname__", None) or type(thing).__name__
    if module == "__main__":
        program = _main_program()
        if program is not None and _is_attribute(sys.modules["__main__"], name, thing):
            return f"{program}:{name}"
    elif module and _is_attribute(sys.modules.get(module), name, thing) and _can_import(module):
        return f"{_files.get(module, module)}:{name}"
    return f"{PYTHON}:{name}"


def _main_program() -> str | None:
    """How another program imports the one that runs: the module of `python -m`, or the path of the script. None if it
    is no file, as in a notebook, or from standard input."""
    main = sys.modules["__main__"]
    path, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__" and importlib.util.find_spec(spec.name) is not None:
        return spec.name
    return str(Path(path).resolve()) if path is not None and Path(path).is_file() else None


def _is_attribute(module: Any, name: str, thing: Any) -> bool:
    """Whether `name`, which may have dots, is `thing` in the module. A function in a function has no such name."""
    found = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def _can_import(module: str) -> bool:
    """Whether another program finds the same module. One made at run time has no file and no finder."""
    spec = getattr(sys.modules[module], "__spec__", None)
    return spec is not None and spec.origin is not None and importlib.util.find_spec(module) is not None


def load(option: str, path: str, allowed: str) -> Callable[..., Any]:
    """The object with an import path, which `option` names. `UsageError` says in one line why it cannot be found."""
    module, _, attribute = path.partition(":")
    if module == PYTHON:
        found = _given.get(path) or _given_by_name.get(attribute.rpartition(".")[2])
        if found is None:
            raise UsageError(
                f"{option} {path}: {attribute!r} was an object in a Python program, and cannot be imported; give the "
                "object again, as this option or in load(..., parts=[...]), or move it to a module"
            )
        return found
    if is_main_program(module):
        return find_in_main_program(module, attribute, f"{option} {path}", allowed)
    return find(module, attribute, f"{option} {path}", allowed)


def add_to_path(folder: str) -> None:
    # At the end, so that a file of the user's does not hide a package.
    if folder not in sys.path:
        sys.path.append(folder)


def import_attribute(module: str, attribute: str, folder: str) -> Any:
    """A possibly dotted attribute of a module. Modules in `folder` can be imported."""
    found: Any = import_module(module, folder)
    for name in attribute.split("."):
        found = getattr(found, name)
    return found


def import_module(module: str, folder: str) -> ModuleType:
    """A module by its name, or by the path of its file. Names and relative paths are looked for in `folder`, too."""
    add_to_path(folder)
    if not is_file(module):
        if sys.modules.get(module) is not None:
            return sys.modules[module]
        with _importing(module):
            return importlib.import_module(module)
    path = Path(folder, module).resolve()
    name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"  # two files may have the same stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        add_to_path(str(path.parent))
        sys.modules[name], _files[name] = loaded, path
        try:
            with _importing(str(path)):
                spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


@contextlib.contextmanager
def _importing(module: str) -> Iterator[None]:
    _being_imported.append(module)
    try:
        yield
    finally:
        _being_imported.pop()


def is_file(module: str) -> bool:
    return module.endswith(".py")


def is_main_program(module: str) -> bool:
    """Whether `module` is the path of the script that runs, or the module that `python -m` runs."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if module == getattr(getattr(main, "__spec__", None), "name", None):
        return True
    return is_file(module) and path is not None and Path(module).resolve() == Path(path).resolve()


def with_absolute_path(name: str) -> str:
    """An id or path that means the same in every folder: `./file.py:function` gets the whole path of the file."""
    module, colon, rest = name.partition(":")
    return f"{Path(module).resolve()}:{rest}" if colon and is_file(module) else name


def require_main_program() -> None:
    """A file or module that is imported for an environment or a part that it defines must not train."""
    if _being_imported:
        module, guard = _being_imported[-1], 'if __name__ == "__main__":'
        raise UsageError(f"{module} trains while it is imported for what it defines; put the training under {guard}")


def find(module: str, attribute: str, asked: str, allowed: str) -> Callable[..., Any]:
    """The function or class `module:attribute` that `asked` names. `UsageError` says what is wrong with it."""
    if is_file(module) and not Path(module).is_file():
        raise UsageError(f"the file {module!r} of {asked!r} does not exist (in {os.getcwd()})")
    try:
        found: Any = import_module(module, os.getcwd())
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module != missing and not module.startswith(f"{missing}."):
            raise UsageError(
                f"module {module!r} of {asked!r} needs a module that is not installed: {error}{extra_hint(error)}"
            ) from error
        raise UsageError(
            f"module {module!r} of {asked!r} does not exist ({error}); "
            f"it is looked for in {SEARCHED.format(os.getcwd())}: start in its folder, or install it"
        ) from error
    return _attribute(found, module, attribute, asked, allowed)


def find_in_main_program(module: str, attribute: str, asked: str, allowed: str) -> Callable[..., Any]:
    """`find` in the script that runs, which is not imported again."""
    return _attribute(sys.modules["__main__"], module, attribute, asked, allowed)


def _attribute(found: Any, module: str, attribute: str, asked: str, allowed: str) -> Callable[..., Any]:
    for name in attribute.split("."):
        if not hasattr(found, name):
            public = [other for other in dir(found) if not other.startswith("_")]
            raise UsageError(f"module {module!r} has no {attribute!r}, which {asked!r} asks for{closest(name, public)}")
        found = getattr(found, name)
    if not callable(found):
        raise UsageError(f"{asked!r} is of the type {type(found).__name__}; allowed: {allowed}")
    return found
