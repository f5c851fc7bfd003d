"""Typed reading of an id's options, with defaults, and with errors that say what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from paceline.envs.factory import check_options
from paceline.envs.ids import EnvId
from paceline.errors import UsageError, closest


class Options:
    """The options of one id. Only those in `allowed` may be present."""

    def __init__(self, env_id: EnvId, allowed: Iterable[str]) -> None:
        check_options(env_id, allowed)
        self._env_id = env_id

    def get(self, name: str, default: Any = None) -> Any:
        return self._env_id.options.get(name, default)

    def integer(self, name: str, default: int, minimum: int = 0) -> int:
        value = self.get(name, default)
        if type(value) is not int or value < minimum:
            raise self.error(name, f"an integer of at least {minimum}")
        return value

    def number(self, name: str, default: float, minimum: float = 0.0, maximum: float = float("inf")) -> float:
        value = self.get(name, default)
        if type(value) not in (int, float) or not minimum <= value <= maximum or value == float("inf"):
            limit = "" if maximum == float("inf") else f" and at most {maximum:g}"
            raise self.error(name, f"a number of at least {minimum:g}{limit}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if type(value) is not bool:
            raise self.error(name, "true or false")
        return value

    def choice(self, name: str, default: str, allowed: Iterable[str]) -> str:
        value, allowed = self.get(name, default), list(allowed)
        if value not in allowed:
            raise self.error(name, ", ".join(allowed) + closest(str(value), allowed))
        return value

    def sizes(self, name: str, default: tuple[int, ...], count: int | None = None) -> tuple[int, ...]:
        """`84x84` as (84, 84). With `count`: that many sizes, or a single one for all."""
        value = self.get(name, default)
        if isinstance(value, tuple):
            return value
        parts = str(value).split("x")
        valid = all(part.isdecimal() and int(part) > 0 for part in parts)
        if not valid or (count is not None and len(parts) not in (1, count)):
            raise self.error(name, "positive sizes such as " + "x".join(map(str, default)))
        sizes = tuple(map(int, parts))
        return sizes * count if count is not None and len(sizes) == 1 else sizes

    def error(self, name: str, allowed: str) -> UsageError:
        return UsageError(f"option {name!r} of {str(self._env_id)!r} is {self.get(name)!r}; allowed: {allowed}")


def has_text(value: Any) -> bool:
    """Whether an option is or contains a string, which a simulator may use as the name of a file, module or program."""
    if isinstance(value, dict):
        return has_text([*value, *value.values()])
    if isinstance(value, list | tuple | set):
        return any(map(has_text, value))
    return isinstance(value, str | bytes)
