"""`History`: what a run has reported, from its metrics.jsonl, as columns of numbers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.errors import UsageError


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
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise UsageError(f"{path.parent} has no reports of a run: metrics.jsonl: {error.strerror}") from error
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            step = row["step"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # a run that was killed as it wrote
            raise UsageError(f"{path}, line {number}: not a report of a run ({line[:40]!r})") from error
        # A run that was resumed from an earlier checkpoint has left behind what it had done since.
        while rows and rows[-1]["step"] >= step:
            rows.pop()
        rows.append(row)
    return rows


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
