"""Results of several runs in a few numbers: interquartile means, bootstrap intervals and performance profiles.

The definitions are those of rliable (Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical
precipice"). They are written here in NumPy, and rliable itself is not used. Its version 1.2.0 needs pandas,
statsmodels and seaborn (170 MB), and fails on import with pandas 3 and on use with arch 8.
`tests/evaluation/test_aggregate.py` compares with numbers of rliable 1.2.0.

Legend: R runs of a group, K points, S resamples. A stratum holds the results of one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

TRIMMED = 0.25
"""The share of results that an interquartile mean leaves out on each side."""
MIN_RUNS = 3
"""An interval needs as many runs of each task."""
NUM_RESAMPLES = 20_000
"""For a number."""
NUM_CURVE_RESAMPLES = 2000
"""For a curve or a profile, as in rliable."""
BOUNDS = (2.5, 97.5)
"""Percentiles: a 95 % interval."""

Strata = Sequence[np.ndarray]
"""For each task, the results [R] of a group's runs."""


@dataclass(frozen=True)
class Aggregate:
    """An interquartile mean over runs and tasks."""

    iqm: float
    interval: tuple[float, float] | None
    """95 % interval by the stratified percentile bootstrap; None with fewer than `MIN_RUNS` runs of a task."""

    @classmethod
    def of(cls, strata: Strata, seed: int = 0) -> Aggregate:
        iqm = float(interquartile_mean(np.concatenate(strata)))
        if not _has_interval(strata):
            return cls(iqm, None)
        low, high = np.percentile(interquartile_mean(_resampled(strata, NUM_RESAMPLES, seed)), BOUNDS)
        return cls(iqm, (float(low), float(high)))


@dataclass(frozen=True)
class Band:
    """A curve over K points, and its 95 % interval at each of them."""

    middle: np.ndarray
    low: np.ndarray | None
    """None with too few runs, as `high`."""
    high: np.ndarray | None


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean over the last dimension without its lowest and highest quarter; with fewer than four numbers, of all."""
    cut = int(TRIMMED * scores.shape[-1])
    return np.sort(scores, -1)[..., cut : scores.shape[-1] - cut].mean(-1)


def performance_profile(strata: Strata, thresholds: np.ndarray, seed: int = 0) -> Band:
    """The share of runs, over all tasks, whose result is above each of `thresholds` [K]."""
    share = (np.concatenate(strata)[:, None] > thresholds).mean(0)
    if not _has_interval(strata):
        return Band(share, None, None)
    resampled = _resampled(strata, NUM_CURVE_RESAMPLES, seed)
    shares = np.stack([(resampled > threshold).mean(1) for threshold in thresholds], 1)
    return Band(share, *np.percentile(shares, BOUNDS, axis=0))


def aggregate_curves(results: np.ndarray, seed: int = 0) -> Band:
    """The interquartile mean of R runs at each of K points, from `results` [R, K]. Whole runs are resampled."""
    middle = interquartile_mean(results.T)
    if len(results) < MIN_RUNS:
        return Band(middle, None, None)
    draws = np.random.default_rng(seed).integers(0, len(results), (NUM_CURVE_RESAMPLES, len(results)))
    means = np.stack([interquartile_mean(point[draws]) for point in results.T], 1)
    return Band(middle, *np.percentile(means, BOUNDS, axis=0))


def scaled_to_unit(results: np.ndarray, lowest: float, highest: float) -> np.ndarray:
    """Results of one task on a scale where `lowest` is 0 and `highest` is 1. If both are equal, all results are 0.5."""
    if highest == lowest:
        return np.full_like(results, 0.5)
    return (results - lowest) / (highest - lowest)


def _has_interval(strata: Strata) -> bool:
    return min(map(len, strata)) >= MIN_RUNS


def _resampled(strata: Strata, count: int, seed: int) -> np.ndarray:
    """[S, all runs]: runs are drawn with replacement within each stratum."""
    rng = np.random.default_rng(seed)
    return np.concatenate([results[rng.integers(0, len(results), (count, len(results)))] for results in strata], 1)
