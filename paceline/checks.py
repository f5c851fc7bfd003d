"""Checks of settings, which every section of a configuration makes in `__post_init__`.

`name` is the section's name in messages. A setting that is None passes: None stands for "not limited" or "automatic".
"""

from __future__ import annotations

import dataclasses
import functools
import numbers
import typing
from collections.abc import Hashable
from typing import Any, Literal

from paceline.errors import UsageError


def field_types(settings: type) -> dict[str, Any]:
    """The types of the fields of a dataclass, by name. Evaluating them takes longer than everything else that a section
    of a configuration does when it is made, so it is done once."""
    return _field_types(typing.cast(Hashable, settings))


@functools.cache
def _field_types(settings: Any) -> dict[str, Any]:
    return typing.get_type_hints(settings)


def as_number(kind: type, value: Any, name: str) -> Any:
    """`value` of any numeric type, as an int or a float. 1e6 is a whole number, and 1.5 is none."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if kind is float and is_number:
        return float(value)
    if is_number and (isinstance(value, numbers.Integral) or float(value).is_integer()):
        return int(value)
    raise UsageError(f"{name} is {value!r}; allowed: {'a whole number' if kind is int else 'a number'}")


def convert_numbers(settings: Any, name: str = "") -> None:
    """Make all numbers of `settings` and its sections ints and floats. The settings do not change otherwise."""
    for field, kind in _numbers(typing.cast(Hashable, type(settings))).items():
        value, dotted = getattr(settings, field), _dotted(name, field)
        if isinstance(value, tuple | list):
            object.__setattr__(settings, field, tuple(as_number(kind, item, dotted) for item in value))
        elif value is not None:
            object.__setattr__(settings, field, as_number(kind, value, dotted))
    for one in dataclasses.fields(settings):
        if dataclasses.is_dataclass(section := getattr(settings, one.name)):
            convert_numbers(section, _dotted(name, one.name))


@functools.cache
def _numbers(settings: Any) -> dict[str, type]:
    """Fields that are a number, or a tuple of numbers, or None, with the type of the number."""
    found = {}
    for field, hint in field_types(settings).items():
        for kind in {hint, *typing.get_args(hint)} & {int, float}:
            found[field] = kind
    return found


def require_at_least(settings: Any, name: str, least: float, *fields: str) -> None:
    for field, value in _given(settings, fields):
        if value < least:
            raise UsageError(f"{_dotted(name, field)} must be at least {least}, got {value}")


def require_above_0(settings: Any, name: str, *fields: str) -> None:
    for field, value in _given(settings, fields):
        if not value > 0:
            none = " or None" if _may_be_none(settings, field) else ""
            raise UsageError(f"{_dotted(name, field)} must be above 0{none}, got {value}")


def require_share(settings: Any, name: str, *fields: str, positive: bool = False) -> None:
    """Between 0 and 1. With `positive`, 0 is refused."""
    for field, value in _given(settings, fields):
        if not 0 <= value <= 1 or (positive and value == 0):
            allowed = "above 0 and at most 1" if positive else "between 0 and 1"
            raise UsageError(f"{_dotted(name, field)} must be {allowed}, got {value}")


def require_choices(settings: Any, name: str) -> None:
    """Every field with a `Literal` type has one of its values."""
    for field, hint in field_types(type(settings)).items():
        value = getattr(settings, field)
        if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
            allowed = ", ".join(map(str, typing.get_args(hint)))
            raise UsageError(f"{_dotted(name, field)} {value!r} does not exist; allowed: {allowed}")


def _given(settings: Any, fields: tuple[str, ...]) -> list[tuple[str, Any]]:
    values = [(field, getattr(settings, field)) for field in fields]
    return [(field, value) for field, value in values if value is not None]


def _dotted(name: str, field: str) -> str:
    return f"{name}.{field}" if name else field


def _may_be_none(settings: Any, field: str) -> bool:
    return any("None" in str(f.type) for f in dataclasses.fields(settings) if f.name == field)
