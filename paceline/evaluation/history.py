"""`History`: the metrics of a run, read from its metrics.jsonl."""

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
    """One column per metric, by rising step; NaN where a report has no value."""

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
        """Whether the metric has any value."""
        return self.last(name) is not None

    def last(self, name: str) -> float | None:
        """The latest value of a metric."""
        values = self.columns.get(name, np.empty(0))
        known = values[np.isfinite(values)]
        return float(known[-1]) if len(known) else None


def _read(path: Path) -> list[dict[str, Any]]:
    """All valid reports. The last line may be incomplete, because a run is writing it or was killed."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise UsageError(f"{path.parent} has no reports of a run: metrics.jsonl: {error.strerror}") from error
    rows: list[dict[str, Any]] = []
    damaged: list[int] = []
    for number, line in enumerate(lines, 1):
        row = _report(line)
        if row is None:
            damaged.append(number)
            continue
        # A run that was resumed from an earlier checkpoint repeats these steps: the old reports do not count.
        last = min(row["step"] - 1, row.pop("resumed_from", row["step"]))
        while rows and rows[-1]["step"] > last:
            rows.pop()
        rows.append(row)
    if damaged and damaged[-1] == len(lines):
        damaged.pop()
    if damaged:
        log.warning("%s: %d damaged lines are left out, the first is line %d", path, len(damaged), damaged[0])
    return rows


def _report(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:  # neither JSON nor text
        return None
    return row if isinstance(row, dict) and type(row.get("step")) in (int, float) else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")
