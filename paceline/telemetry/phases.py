"""What a run does right now (starting simulators, collecting, learning), for the display."""

from __future__ import annotations

STARTING = "starting simulators"
"""The phase in which pools make their environments."""


class Phases:
    """The phases under way, by name. Any thread may write; the display's thread reads."""

    def __init__(self) -> None:
        self._current: dict[str, tuple[int, int, str | None]] = {}

    def show(self, name: str, done: int, total: int, unit: str | None = None) -> None:
        """`done` of `total` units are finished. Shown in percent without a unit, and not at all if `total` is 0."""
        self._current[name] = done, total, unit

    def end(self, name: str) -> None:
        self._current.pop(name, None)

    def clear(self) -> None:
        self._current = {}

    def __str__(self) -> str:
        return ", ".join(_text(name, *work) for name, work in dict(self._current).items())


def _text(name: str, done: int, total: int, unit: str | None) -> str:
    if total <= 0:
        return name
    return f"{name} {min(1.0, done / total):.0%}" if unit is None else f"{name} {done} of {total} {unit}".rstrip()
