"""Settings, times and names of metrics as a report shows them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from paceline.config import Config


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def capitalized(text: str) -> str:
    return text[0].upper() + text[1:]


def label_of(name: str, labels: Mapping[str, str]) -> str:
    """The label of a metric or a measure."""
    return labels.get(name, name.replace("_", " ").replace("/", ", "))


def settings_in_words(config: Config) -> dict[str, str]:
    """Every setting by its dotted name."""
    return _flat(dataclasses.asdict(config))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = _shown(value)
    return flat


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
