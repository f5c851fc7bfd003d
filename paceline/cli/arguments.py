"""Parses arguments into dataclasses by tyro, and says in one line what is wrong with them.

tyro tells a hook what is wrong before it prints a frame of several lines. The hook is no part of tyro's stable
interface. Where a version of tyro has none, or another one, its frame remains.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import itertools
import re
import types
import typing
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import tyro

from paceline.errors import UsageError, closest

SIMILAR, NEARLY_BEST, MOST = 0.6, 0.1, 3
"""Suggested options: how similar they are, by how much less than the best one, and how many there are."""
KINDS = {
    "INT": ("a whole number", "whole numbers"),
    "FLOAT": ("a number", "numbers"),
    "STR": ("a text", "texts"),
    "PATH": ("a path", "paths"),
}
"""What tyro calls the types of values: in words, for one and for several."""


def parse_arguments(
    kind: Any, arguments: list[str], prog: str, description: str | None = None, help_option: str = "--help"
) -> Any:
    """An object of `kind`, a dataclass or a union of subcommands. `help_option` lists all options."""
    hook = getattr(getattr(tyro, "_errors", None), "on_parse_error", None)
    refuse = functools.partial(_refuse, kind=kind, arguments=arguments, help_option=help_option)
    with hook(refuse) if hook is not None else contextlib.nullcontext():
        return tyro.cli(kind, args=arguments, prog=prog, description=description)


def known_options(kind: Any) -> dict[str, list[str]]:
    """The options of a dataclass, or of subcommands, with the values that each allows; none if it allows more than a
    few words."""
    if not dataclasses.is_dataclass(kind):
        return {option: words for part in _subcommands(kind).values() for option, words in known_options(part).items()}
    return _options_of(typing.cast(type, kind), "")


def _options_of(kind: type, prefix: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        base, *marks = _unmarked(hints[field.name])
        name = f"{prefix}{field.name}".replace("_", "-")
        if tyro.conf.Positional in marks:
            continue
        if dataclasses.is_dataclass(base):
            is_nameless = any(getattr(mark, "name", None) == "" for mark in marks)
            found |= _options_of(typing.cast(type, base), prefix if is_nameless else f"{name}.")
        elif base is bool:
            found |= {f"--{name}": [], _negated(f"--{name}"): []}
        else:
            found[f"--{name}"] = _values(base)
    return found


def _unmarked(hint: Any) -> tuple[Any, ...]:
    """A type, and what `Annotated` adds to it."""
    return typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)


def _values(hint: Any) -> list[str]:
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    words = [str(value) for part in parts if typing.get_origin(part) is Literal for value in typing.get_args(part)]
    words += ["True", "False"] if bool in parts else []
    return [*words, "None"] if words and type(None) in parts else words


def _negated(option: str) -> str:
    """The option that sets a flag to False: --ver.no-overlap for --ver.overlap."""
    section, dot, last = option.removeprefix("--").rpartition(".")
    return f"--{section}{dot}no-{last}"


def _subcommands(kind: Any) -> dict[str, Any]:
    """The dataclasses of a union of subcommands, by the words that choose them; none for one dataclass."""
    if dataclasses.is_dataclass(kind):
        return {}
    parts = [_unmarked(part) for part in typing.get_args(kind)]
    return {mark.name: part for part, *marks in parts for mark in marks}


def _refuse(event: Any, *, kind: Any, arguments: list[str], help_option: str) -> None:
    """tyro's hook: raise a `UsageError` for what is wrong, or return if tyro is to say it."""
    message = None
    with contextlib.suppress(AttributeError):  # another version of tyro
        message = _message(event, kind, arguments, help_option)
    if message is not None:
        raise UsageError(message)


def _message(event: Any, kind: Any, arguments: list[str], help_option: str) -> str | None:
    match type(event).__name__:
        case "UnrecognizedArgs":
            return _unknown(event.tokens, kind, arguments, help_option)
        case "MissingArgs" | "BadValue" if wrong := _wrong_options(kind, arguments):
            return _unknown(wrong, kind, arguments, help_option)  # it may have caused the other mistake
        case "MissingArgs":
            return f"{event.prog} needs {' and '.join(_usage(one.arg) for one in event.missing_arguments)}"
        case "MissingSubcommand":
            return f"{event.prog} needs one of: {', '.join(event.subcommand_spec.parser_from_name)}"
        case "InvalidChoice":
            name = event.argument.display_name()
            return f"{name} {event.value!r} does not exist; allowed: {', '.join(event.choices)}"
        case "BadValue" if event.argument.is_positional():
            return f"{event.prog} needs {event.argument.lowered.metavar}"
        case "BadValue":
            return f"{event.argument.display_name()} needs a value; allowed: {_allowed(event.argument.lowered.metavar)}"
        case "InstantiationFailure" if event.argument is None:
            return str(event.message)
        case "InstantiationFailure":
            name = event.argument.display_name()
            return f"{name} is {_given_to(name, arguments)!r}; allowed: {_allowed(event.argument.lowered.metavar)}"
    return None


def _unknown(words: list[str], kind: Any, arguments: list[str], help_option: str) -> str:
    """What is wrong with words that are no options, and no values of options."""
    known, subcommands = known_options(kind), _subcommands(kind)
    option = next(filter(_is_option, words), None)
    if option is not None:
        option = option.partition("=")[0]
        return f"there is no option {option}{_suggestion(option, known)}; {help_option} lists all"
    if subcommands and not subcommands.keys() & set(arguments):
        return f"{words[0]!r} does not exist{closest(words[0], subcommands)}; allowed: {', '.join(subcommands)}"
    before = ["", *arguments][arguments.index(words[0])]
    if _negated(before) in known:
        return f"{before} takes no value, and got {words[0]!r}; allowed: {before}, {_negated(before)}"
    return f"unexpected argument {words[0]!r}; allowed: options, which {help_option} lists"


def _wrong_options(kind: Any, arguments: list[str]) -> list[str]:
    known = known_options(kind)
    return [word for word in arguments if _is_option(word) and word.partition("=")[0].replace("_", "-") not in known]


def _is_option(word: str) -> bool:
    return re.match(r"--?[^\W\d]", word) is not None


def _suggestion(option: str, known: Iterable[str]) -> str:
    """The most similar options, short names first. They are also found without their section."""
    scores = {name: max(_similarity(option, name), _similarity(option, name.rpartition(".")[2])) for name in known}
    least = max(SIMILAR, max(scores.values(), default=0.0) - NEARLY_BEST)
    near = sorted((name for name in scores if scores[name] >= least), key=lambda name: (-scores[name], len(name)))
    return f", did you mean {' or '.join(near[:MOST])}?" if near else ""


def _similarity(option: str, name: str) -> float:
    return difflib.SequenceMatcher(None, option.lstrip("-"), name.removeprefix("--")).ratio()


def _given_to(option: str, arguments: list[str]) -> str:
    """What was typed as the value of an option."""
    for at in reversed(range(len(arguments))):
        name, equals, value = arguments[at].partition("=")
        if name.replace("_", "-") == option:
            after = itertools.takewhile(lambda word: not _is_option(word), arguments[at + 1 :])
            return value if equals else " ".join(after)
    return ""


def _usage(argument: Any) -> str:
    """A required argument as a user has to write it: RUN, or --format onnx or torchscript."""
    metavar = argument.lowered.metavar
    return metavar if argument.is_positional() else f"{argument.display_name()} {metavar.strip('{}').replace(',', '|')}"


def _allowed(metavar: str) -> str:
    """What tyro's name for values means: "a whole number, None" for {None}|INT."""
    several = metavar.startswith("[")
    words: list[str] = []
    for part in re.findall(r"{[^}]*}|[^|]+", metavar.strip("[]").split(" ")[0] if several else metavar):
        words += part[1:-1].split(",") if part.startswith("{") else [KINDS[part][several] if part in KINDS else part]
    return ", ".join(sorted(words, key=lambda word: word == "None"))
