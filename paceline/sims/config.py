"""`SimulatorOptions`: the options of an embedded simulator, as a checked dataclass. Without PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from paceline.checks import field_types
from paceline.errors import UsageError, closest


@dataclass(frozen=True, kw_only=True)
class SimulatorOptions:
    """A subclass names its task and has an option per field. Values of a wrong type or out of range are refused."""

    task: ClassVar[str]
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """The values that an option can have."""
    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {}
    """The least and the largest value of an option."""

    def __post_init__(self) -> None:
        kinds = field_types(type(self))
        for name in option_names(type(self)):
            self._check(name, kinds[name], getattr(self, name))

    @classmethod
    def of_options(cls, options: dict[str, Any], what: str) -> Self:
        """From the options of the environment id `what`, which error messages name."""
        names = option_names(cls)
        for name in options:
            if name not in names:
                raise UsageError(
                    f"option {name!r} of {what!r} does not exist{closest(name, names)}; allowed: {', '.join(names)}"
                )
        return cls(**options)

    def _check(self, name: str, kind: type, value: Any) -> None:
        if value not in self.choices.get(name, (value,)):
            raise self._error(name, value, ", ".join(self.choices[name]))
        if type(value) is not kind and not (kind is float and type(value) is int):
            text = str(value).lower() if isinstance(value, bool) else value
            quoted = f"text, in quotes if it looks like another value: {name}='{text}'"
            words = {int: "a whole number", bool: "true or false", float: "a number", str: quoted}
            raise self._error(name, value, words[kind])
        if name in self.ranges:
            self._check_range(name, *self.ranges[name])

    def _check_range(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            limit = " or more" if most == math.inf else f" to {most:g}"
            raise self._error(name, value, f"{least:g}{limit}")

    def _error(self, name: str, value: Any, allowed: str) -> UsageError:
        return UsageError(f"{self.task}: {name} is {value!r}; allowed: {allowed}")


def option_names(config: type[SimulatorOptions]) -> list[str]:
    """The names of a task's options."""
    return [field.name for field in fields(config)]
