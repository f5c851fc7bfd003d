"""The settings of a run as command-line options. Only the settings that the chosen system reads are options.

`cli.arguments` parses them. `value_of` looks at the arguments before, because the recipe, the system and the run to
resume decide which options there are and what their defaults are.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import Collection
from typing import Annotated, Any, TypeVar

import tyro

from paceline.checks import field_types
from paceline.cli.arguments import parse_arguments
from paceline.config import Config, leaves
from paceline.errors import UsageError
from paceline.other_names import meant_by
from paceline.systems import SYSTEMS, readers, unread_by

OptionsT = TypeVar("OptionsT")


def parse(own: type[OptionsT], base: Config, arguments: list[str], prog: str) -> tuple[OptionsT, Config]:
    """The options of a command, and `base` changed by the options that are settings.

    `own` is the dataclass of the command's other options. `--system` may be anywhere among the arguments.
    """
    base = base.under(value_of("--system", arguments) or base.system)
    _require_own_options(base.system, arguments)
    _hint_at_other_names(base.system, arguments, set(vars(own())))
    hidden = {"recipe", *unread_by(base.system)}
    parts = {"own": _option_class(own()), "settings": _option_class(base, hidden)}
    command = dataclasses.make_dataclass(
        "Command", [(name, Annotated[kind, tyro.conf.arg(name="", help="")]) for name, kind in parts.items()]
    )
    arguments = ["--help" if argument == "--help-all" else argument for argument in arguments]
    about = _description(own, base.system)
    found: Any = parse_arguments(command, arguments, prog, about, help_option="--help-all")
    settings = dataclasses.asdict(found.settings) | {"recipe": base.recipe}
    return own(**vars(found.own)), Config.from_settings(settings, prog)


def value_of(option: str, arguments: list[str]) -> str | None:
    """The argument after `option`, or after its equals sign. None if there is none."""
    for at in reversed(range(len(arguments))):
        name, equals, value = arguments[at].partition("=")
        if name.replace("_", "-") == option:
            return value if equals else arguments[at + 1] if at + 1 < len(arguments) else None
    return None


def is_given(name: str, arguments: list[str]) -> bool:
    """Whether the arguments have a setting, by its dotted name. A flag may be switched on or off."""
    forms = [options_of(name, value)[0] for value in (True, False)]
    return any(argument.partition("=")[0].replace("_", "-") in forms for argument in arguments)


def without_options(arguments: list[str], valued: Collection[str], flags: Collection[str]) -> list[str]:
    """The arguments without these options; those in `valued` are followed by a value."""
    kept, skips = [], False
    for argument in arguments:
        name, equals, _ = argument.replace("_", "-").partition("=")
        if not skips and name not in (*valued, *flags):
            kept.append(argument)
        skips = not skips and name in valued and not equals
    return kept


def options_of(name: str, value: Any) -> list[str]:
    """The option that gives a setting, by its dotted name, a value."""
    name = name.replace("_", "-")
    if isinstance(value, bool):
        section, dot, last = name.rpartition(".")
        return [f"--{name}" if value else f"--{section}{dot}no-{last}"]
    if isinstance(value, list | tuple):
        return [f"--{name}", *map(str, value)]
    return [f"--{name}", str(value)]


def _require_own_options(system: str, arguments: list[str]) -> None:
    """Refuse options of other systems."""
    others = {name.replace("_", "-"): name for name in leaves(Config()) if system not in readers(name)}
    for argument in arguments:
        option = argument.partition("=")[0]
        name = option.removeprefix("--").replace("_", "-").replace(".no-", ".")  # --ver.no-overlap sets ver.overlap
        if option.startswith("--") and name in others:
            allowed = ", ".join(readers(others[name]))
            raise UsageError(f"{option} has no effect under {system}; it is an option of {allowed}")


def _hint_at_other_names(system: str, arguments: list[str], own: Collection[str]) -> None:
    """Refuse options that another library has, or that lack their section, and name the option that exists."""
    known = {*own, *leaves(Config())}
    for argument in arguments:
        option = argument.partition("=")[0]
        name = option.removeprefix("--").replace("-", "_")
        if option.startswith("--") and name not in known and (meant := meant_by(name, system)):
            allowed = ", ".join(f"--{setting.replace('_', '-')}" for setting in meant)
            raise UsageError(f"there is no option {option}; allowed: {allowed}")


def _description(own: type, system: str) -> str:
    systems = "\n".join(f"  {name}: {spec.about}" for name, spec in SYSTEMS.items())
    return f"{own.__doc__} These are the options under the system {system}. All systems:\n{systems}"


def _option_class(settings: Any, hidden: Collection[str] = (), name: str = "") -> type:
    """A dataclass for tyro with the fields of `settings`, except those whose dotted names are in `hidden`.

    The values of `settings` are the defaults, and the docstrings of the fields are the help texts. tyro finds
    docstrings itself, but takes longer, and keeps their line breaks.
    """
    kind, fields = type(settings), []
    hints, docs = field_types(kind), _field_docs(kind.__module__)
    for one in dataclasses.fields(kind):
        hint, value, dotted = hints[one.name], getattr(settings, one.name), f"{name}{one.name}"
        if dotted in hidden:
            continue
        if dataclasses.is_dataclass(value):
            hint = _option_class(value, hidden, f"{dotted}.")
            help_text, default = value.__doc__, dataclasses.field(default_factory=hint)
        else:
            help_text, default = docs.get((kind.__name__, one.name)), dataclasses.field(default=value)
        fields.append((one.name, Annotated[_with_exponents(hint), tyro.conf.arg(help=help_text)], default))
    return dataclasses.make_dataclass(kind.__name__, fields)


def _whole_number(texts: list[str]) -> int:
    """3, 1e6 or 2_000_000."""
    try:
        return int(texts[0])
    except ValueError:
        number = float(texts[0])
    if not number.is_integer():
        raise ValueError(f"{texts[0]} is not a whole number")
    return int(number)


INT = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="INT",
    instance_from_str=_whole_number,
    is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
    str_from_instance=lambda value: [str(value)],
)


def _with_exponents(hint: Any) -> Any:
    """The type of an option that is a whole number, which may be written as 1e6; any other type as it is."""
    if hint is int:
        return Annotated[int, INT]
    if typing.get_origin(hint) is types.UnionType and set(typing.get_args(hint)) == {int, type(None)}:
        return Annotated[int, INT] | None
    return hint


@functools.cache
def _field_docs(module: str) -> dict[tuple[str, str], str]:
    """The docstring under every field of every class in a module, by class and field, each in one line."""
    docs = {}
    for definition in ast.parse(inspect.getsource(sys.modules[module])).body:
        if not isinstance(definition, ast.ClassDef):
            continue
        for field, text in itertools.pairwise(definition.body):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                    docs[definition.name, name] = " ".join(doc.split())
    return docs
