"""A power law of the error over experience, as DD-PPO found it for SPL: 1 - result = a * steps ** -b.

Legend: R runs, K points of a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.evaluation.history import History

NUM_POINTS = 60
START = 0.5
"""A fit begins where the mean result first reaches this. Before that, learning has hardly begun."""
MIN_POINTS = 8
"""A fit needs as many."""
MIN_RUNS = 3
"""An interval needs as many."""
NUM_RESAMPLES = 1000
LEAST_ERROR = 1e-3
"""Smaller errors count as this one in a fit, because the logarithm of 0 does not exist."""


@dataclass(frozen=True)
class RunCurves:
    """A metric of several runs at the same steps."""

    steps: np.ndarray
    """[K], evenly spaced on a logarithmic axis, or on a linear one."""
    results: np.ndarray
    """[R, K]."""

    @classmethod
    def of(cls, histories: Sequence[History], metric: str, *, is_linear: bool = False) -> RunCurves | None:
        """Interpolated between the reports, over the steps that all runs have; None if there are no such steps."""
        curves = []
        for history in histories:
            values = history.columns.get(metric, np.full(len(history), np.nan))
            known = np.isfinite(values) & (history.columns["step"] > 0)
            if not known.any():
                return None
            curves.append((history.columns["step"][known], values[known]))
        first, last = max(steps[0] for steps, _ in curves), min(steps[-1] for steps, _ in curves)
        if first >= last:
            return None
        grid = (np.linspace if is_linear else np.geomspace)(first, last, NUM_POINTS)
        return cls(grid, np.stack([np.interp(grid, steps, values) for steps, values in curves]))


@dataclass(frozen=True)
class PowerLaw:
    """1 - result = scale * steps ** -exponent."""

    scale: float
    exponent: float

    @classmethod
    def fit(cls, steps: np.ndarray, results: np.ndarray) -> PowerLaw:
        """Least squares between logarithms, over `steps` and `results` [K]."""
        errors = np.log(np.maximum(1.0 - results, LEAST_ERROR))
        slope, intercept = np.polyfit(np.log(steps), errors, 1)
        return cls(float(np.exp(intercept)), float(-slope))

    def at(self, steps: np.ndarray) -> np.ndarray:
        return 1.0 - self.scale * steps**-self.exponent


@dataclass(frozen=True)
class FittedLaw:
    """The power law of the mean of several runs."""

    law: PowerLaw
    first: float
    """The fit uses the points from this step on."""
    num_points: int
    interval: tuple[float, float] | None
    """95 % interval of the exponent by the percentile bootstrap over runs; None with fewer than `MIN_RUNS`."""


def fit_curves(curves: RunCurves, seed: int = 0) -> FittedLaw | None:
    """The fit to the points from `START` on, or None if there are too few."""
    learned = np.flatnonzero(curves.results.mean(0) >= START)
    if not len(learned) or len(curves.steps) - learned[0] < MIN_POINTS:
        return None
    steps, results = curves.steps[learned[0] :], curves.results[:, learned[0] :]
    num_runs, interval = len(results), None
    if num_runs >= MIN_RUNS:
        rng = np.random.default_rng(seed)
        draws = rng.integers(0, num_runs, (NUM_RESAMPLES, num_runs))
        exponents = [PowerLaw.fit(steps, results[draw].mean(0)).exponent for draw in draws]
        low, high = np.percentile(exponents, [2.5, 97.5])
        interval = (float(low), float(high))
    return FittedLaw(PowerLaw.fit(steps, results.mean(0)), float(steps[0]), len(steps), interval)
