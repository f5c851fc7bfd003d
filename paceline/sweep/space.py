"""The space of a sweep: which settings are searched, and where. It is read from a JSON or TOML file and checked."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.config import Config, leaves
from paceline.errors import UsageError, closest
from paceline.systems import readers

FIXED = ("env", "recipe", "seed", "steps", "system")
"""Settings that are the same in all trials: results would not be comparable otherwise."""
FORMS = '{"low": 1e-4, "high": 1e-2, "log": true} or {"choices": [1, 2]}'


@dataclass(frozen=True, kw_only=True)
class SearchRange:
    """All numbers between two bounds, which are included."""

    low: float
    high: float
    log: bool = False
    """Whether small numbers are tried as often as large ones."""
    is_int: bool = False

    @property
    def samples(self) -> tuple[Any, ...]:
        """Values that stand for all."""
        return self.low, self.high


@dataclass(frozen=True)
class SearchChoices:
    """A few values."""

    values: tuple[Any, ...]

    @property
    def samples(self) -> tuple[Any, ...]:
        return self.values


Space = dict[str, SearchRange | SearchChoices]
"""By the dotted name of a setting."""


def load_space(path: Path, config: Config) -> Space:
    """Read a file. `config` has the settings that are not searched; what it does not allow is refused."""
    entries = _entries(path)
    if not entries:
        raise UsageError(f"{path} has no settings; allowed: a setting's name, such as ppo.epochs, with {FORMS}")
    return {name: _parameter(f"{path}: {name}", name, entry, config) for name, entry in entries.items()}


def changed(config: Config, values: dict[str, Any], source: str) -> Config:
    """`config` with other values of some settings, by dotted name."""
    settings = dataclasses.asdict(config)
    for name, value in values.items():
        *sections, last = name.split(".")
        place = settings
        for section in sections:
            place = place[section]
        place[last] = value
    return Config.from_settings(settings, source)


def value_in_words(value: object) -> str:
    return "none" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


def _entries(path: Path) -> dict[str, dict[str, Any]]:
    """What the file has for each dotted name. Names may also be nested, as TOML's tables are."""
    if path.suffix not in (".json", ".toml"):
        raise UsageError(f"the space {path} ends in {path.suffix!r}; allowed: .json, .toml")
    try:
        text = path.read_text()
        data = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"the space {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"the space {path} is not {path.suffix[1:].upper()}: {error}") from error
    if not isinstance(data, dict):
        raise UsageError(f"the space {path} is a {type(data).__name__}; allowed: an object of names and {FORMS}")
    return _flattened(data, "", path)


def _flattened(data: dict[str, Any], prefix: str, path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, entry in data.items():
        if not isinstance(entry, dict):
            raise UsageError(f"{path}: {prefix}{name} is {entry!r}; allowed: {FORMS}")
        is_parameter = not entry or any(key in entry for key in ("low", "high", "log", "choices"))
        found |= {prefix + name: entry} if is_parameter else _flattened(entry, f"{prefix}{name}.", path)
    return found


def _parameter(where: str, name: str, entry: dict[str, Any], config: Config) -> SearchRange | SearchChoices:
    allowed = [one for one in leaves(config) if config.system in readers(one) and one not in FIXED]
    if name in FIXED:
        raise UsageError(f"{where} is the same in all trials and cannot be searched; set it by --{name}")
    if name not in allowed:
        raise UsageError(
            f"{where}: there is no such setting of {config.system}{closest(name, allowed)}; "
            "`paceline train --help-all` lists all"
        )
    unknown = set(entry) - {"low", "high", "log", "choices"}
    if unknown or ("choices" in entry) == ("low" in entry) or ("low" in entry) != ("high" in entry):
        raise UsageError(f"{where} is {json.dumps(entry)}; allowed: {FORMS}")
    found = _choices(where, entry) if "choices" in entry else _range(where, entry, _hint(name))
    for value in found.samples:
        try:
            changed(config, {name: value}, where)
        except UsageError as error:
            problem = str(error)
            raise UsageError(problem if problem.startswith(where) else f"{where}: {problem}") from error
    return found


def _choices(where: str, entry: dict[str, Any]) -> SearchChoices:
    values = entry["choices"]
    if len(entry) > 1 or not isinstance(values, list) or not values:
        raise UsageError(f"{where} is {json.dumps(entry)}; allowed: {FORMS}")
    return SearchChoices(tuple(values))


def _range(where: str, entry: dict[str, Any], hint: Any) -> SearchRange:
    kinds = _kinds(hint)
    if not kinds & {int, float}:
        raise UsageError(f'{where} is not a number, so it has no range; allowed: {{"choices": [...]}}')
    low, high, log = entry["low"], entry["high"], entry.get("log", False)
    number, word = (int | float, "numbers") if float in kinds else (int, "whole numbers")
    if not all(isinstance(one, number) and not isinstance(one, bool) and math.isfinite(one) for one in (low, high)):
        raise UsageError(f"{where} has low {low!r} and high {high!r}; allowed: {word}")
    if low > high:
        raise UsageError(f"{where} has low {low} above high {high}; allowed: low up to high")
    if not isinstance(log, bool):
        raise UsageError(f"{where} has log {log!r}; allowed: true, false")
    if log and low <= 0:
        raise UsageError(f"{where} has low {low}; with log, it must be above 0")
    return SearchRange(low=low, high=high, log=log, is_int=float not in kinds)


def _hint(name: str) -> Any:
    """The type of a setting."""
    kind: Any = Config
    for part in name.split("."):
        kind = typing.get_type_hints(kind)[part]
    return kind


def _kinds(hint: Any) -> set[Any]:
    return set(typing.get_args(hint)) if typing.get_origin(hint) in (typing.Union, types.UnionType) else {hint}
