"""`History`: what a run has reported, from its metrics.jsonl, as columns of numbers."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import UsageError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class History:
    """The reports of a run by rising step; NaN where one lacks a number."""

    columns: dict[str, np.ndarray]

    @classmethod
    def load(cls, folder: Path) -> History:
        rows = _read(folder / "metrics.jsonl")
        if not rows:
            raise UsageError(f"the run in {folder} has not reported anything yet: there are no rows in metrics.jsonl")
        names = dict.fromkeys(name for row in rows for name, value in row.items() if not isinstance(value, str | bool))
        return cls({name: np.array([_number(row.get(name)) for row in rows]) for name in names})

    def __len__(self) -> int:
        return len(self.columns["step"])

    def has(self, name: str) -> bool:
        """Whether there is any number of that name."""
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())

    def last(self, name: str) -> float | None:
        """The latest number of that name."""
        if not self.has(name):
            return None
        values = self.columns[name]
        return float(values[np.isfinite(values)][-1])


def _read(path: Path) -> list[dict[str, Any]]:
    """The reports that are whole. The last line may be broken: a run was killed as it wrote, or is writing it now."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path.parent} has no reports of a run: metrics.jsonl: {error.strerror}") from error
    rows: list[dict[str, Any]] = []
    broken: list[int] = []
    for number, line in enumerate(lines, 1):
        row = _report(line)
        if row is None:
            broken.append(number)
            continue
        # A run that was resumed from an earlier checkpoint has left behind what it had done since.
        while rows and rows[-1]["step"] >= row["step"]:
            rows.pop()
        rows.append(row)
    damaged = [number for number in broken if number < len(lines)]
    if damaged:
        log.warning("%s: %d damaged lines are left out, the first is line %d", path, len(damaged), damaged[0])
    return rows


def _report(line: bytes) -> dict[str, Any] | None:
    """A line of the file; None if it is not a report."""
    try:
        row = json.loads(line)
    except ValueError:  # no JSON, or no text
        return None
    return row if isinstance(row, dict) and type(row.get("step")) in (int, float) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
