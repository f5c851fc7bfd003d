"""Time shares: every second counts once."""

from __future__ import annotations

import pytest

from paceline.telemetry import clock as module
from paceline.telemetry.clock import Clock


@pytest.fixture
def now(monkeypatch):
    """A time that only the test advances."""
    time = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: time[0])
    return time


def test_inner_activities_are_not_counted_twice(now):
    clock = Clock()
    with clock.time("inference"):
        now[0] += 1
        with clock.time("transfer"):
            now[0] += 2
        now[0] += 1
        with clock.time("transfer"), clock.time("communication"):
            now[0] += 3
    now[0] += 1
    shares = clock.take_shares()
    assert shares == {
        "simulation": 0.0,
        "inference": 2 / 8,
        "transfer": 2 / 8,
        "learning": 0.0,
        "communication": 3 / 8,
        "other": 1 / 8,
    }


def test_shares_start_over_after_each_report(now):
    clock = Clock()
    with clock.time("learning"):
        now[0] += 4
    clock.take_shares()
    with clock.time("simulation"):
        now[0] += 1
    assert clock.take_shares()["simulation"] == 1.0
