"""Pickles that do something when they are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Touch:
    """Loaded from a pickle, it makes a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)
