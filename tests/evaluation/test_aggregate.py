"""Interquartile means, stratified bootstrap intervals and performance profiles."""

from __future__ import annotations

import numpy as np
import pytest

from paceline.evaluation.aggregate import (
    Aggregate,
    aggregate_curves,
    interquartile_mean,
    performance_profile,
    scaled_to_unit,
)

ONE_TASK = [np.array([100.0, 106.0, 94.5, 82.2, 90.9, 80.2, 101.2, 126.8])]
THREE_TASKS = [
    np.array([0.4, 0.57, 0.49, 0.41, 0.13]),
    np.array([0.38, 0.52, 0.64, 0.12, 0.45]),
    np.array([0.6, 0.31, 0.23, 0.24, 0.25]),
]


@pytest.mark.parametrize(
    ("strata", "iqm", "interval"),
    [(ONE_TASK, 96.65, (86.05, 108.2)), (THREE_TASKS, 0.38333333, (0.28666667, 0.48222222))],
)
def test_intervals_are_those_of_rliable(strata, iqm, interval):
    """The expected numbers are from rliable 1.2.0 with 50,000 resamples; resamples differ, so bounds do a little."""
    found = Aggregate.of(strata)
    assert found.iqm == pytest.approx(iqm)
    assert found.interval == pytest.approx(interval, rel=0.01)


def test_profiles_are_those_of_rliable():
    found = performance_profile(THREE_TASKS, np.array([0.2, 0.4, 0.5, 0.6, 0.8]))
    np.testing.assert_allclose(found.middle, [13 / 15, 7 / 15, 4 / 15, 1 / 15, 0])
    np.testing.assert_allclose(found.low, [10 / 15, 4 / 15, 1 / 15, 0, 0])
    np.testing.assert_allclose(found.high, [1, 10 / 15, 7 / 15, 3 / 15, 0])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 15])
def test_an_interquartile_mean_is_a_trimmed_mean(count):
    stats = pytest.importorskip("scipy.stats")
    scores = np.random.default_rng(count).normal(size=(3, count))
    np.testing.assert_allclose(interquartile_mean(scores), stats.trim_mean(scores, 0.25, axis=1))


def test_resamples_stay_within_their_task():
    """Every run of a task has the same result: whatever is drawn, the aggregate is the same."""
    found = Aggregate.of([np.full(3, 1.0), np.full(3, 5.0)])
    assert found.interval == (3.0, 3.0)


def test_few_runs_have_no_interval():
    assert Aggregate.of([np.array([1.0, 2.0])]) == Aggregate(1.5, None)
    assert Aggregate.of([np.arange(5.0), np.arange(2.0)]).interval is None
    assert performance_profile([np.arange(2.0)], np.array([0.5])).low is None
    assert aggregate_curves(np.ones((2, 4))).low is None


def test_curves_have_an_interval_at_each_point():
    results = np.array([[0.0, 10.0], [1.0, 10.0], [2.0, 10.0]])
    band = aggregate_curves(results)
    assert band.middle.tolist() == [1.0, 10.0]
    assert 0.0 <= band.low[0] < 0.5 and 1.5 < band.high[0] <= 2.0
    assert (band.low[1], band.high[1]) == (10.0, 10.0)


def test_results_are_scaled_by_the_extremes_of_their_task():
    assert scaled_to_unit(np.array([10.0, 15.0, 20.0]), 10.0, 20.0).tolist() == [0.0, 0.5, 1.0]
    assert scaled_to_unit(np.array([3.0]), 3.0, 3.0).tolist() == [0.5]
