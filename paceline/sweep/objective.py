"""The objective of a sweep: one number of a run, from its reports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from paceline.checks import require_choices
from paceline.errors import UsageError
from paceline.evaluation.history import History

Statistic = Literal["median", "mean", "last", "max"]
STATISTICS: dict[str, Callable[[np.ndarray], Any]] = {"median": np.median, "mean": np.mean, "max": np.max}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Which metric counts, and at which time."""

    metric: str
    """Its name in metrics.jsonl."""
    statistic: Statistic = "median"
    window: float = 0.2
    """The share of the steps so far, at their end, that the statistic is over."""
    minimize: bool = False

    def __post_init__(self) -> None:
        require_choices(self, "")
        if not 0.0 < self.window <= 1.0:
            raise UsageError(f"--window is {self.window:g}; allowed: above 0, up to 1")

    def of(self, history: History, until: float = np.inf) -> float | None:
        """The objective of a run after its steps up to `until`; None if it has no value yet."""
        values = history.columns.get(self.metric)
        if values is None:
            return None
        steps = history.columns["step"]
        known = np.isfinite(values) & (steps <= until)
        if not known.any():
            return None
        if self.statistic == "last":
            return float(values[known][-1])
        late = known & (steps >= (1.0 - self.window) * steps[known][-1])
        return float(STATISTICS[self.statistic](values[late]))
