"""Naps happen where many messages arrive, and only there."""

from __future__ import annotations

import pytest

from paceline.accel import naps
from paceline.accel.naps import LONGEST_SECONDS, Naps


@pytest.fixture
def slept(monkeypatch):
    seconds: list[float] = []
    monkeypatch.setattr(naps.time, "sleep", seconds.append)
    return seconds


def after(seconds: float, slots: int, messages: int) -> Naps:
    found = Naps()
    for _ in range(100):
        found.note(seconds, slots, messages)
    return found


def test_a_nap_is_a_part_of_the_expected_time(slept):
    assert after(0.0016, slots=32, messages=16).take(20, 1.0)
    assert slept == [pytest.approx(0.6 * 20 * 0.00005, rel=0.01)]


def test_a_nap_is_no_longer_than_allowed(slept):
    many = after(0.1, slots=1000, messages=1000)
    assert many.take(1000, 1.0) and many.take(1000, 0.0005)
    assert slept == [LONGEST_SECONDS, 0.0005]


@pytest.mark.parametrize(
    ("seconds", "slots", "messages", "missing"),
    [
        (0.0007, 32, 2, 32),  # few messages: light environments in few workers
        (0.0003, 32, 16, 32),  # the wait is short
        (0.0016, 32, 16, 1),  # one slot is missing
        (1.0, 16, 16, 16),  # slow simulators
    ],
)
def test_no_nap_where_it_saves_nothing(slept, seconds, slots, messages, missing):
    assert not after(seconds, slots, messages).take(missing, 1.0)
    assert slept == []


def test_no_nap_before_the_first_measurement(slept):
    fresh = Naps()
    fresh.note(0.5, slots=0, messages=0)
    assert not fresh.take(64, 1.0) and slept == []
