"""The limiter holds the ratio, and never holds up both sides."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.experience.config import LimiterConfig
from paceline.experience.limiter import Limiter


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.floats(0.05, 64.0), st.integers(1, 200), st.integers(1, 300), st.integers(1, 40))
def test_the_ratio_is_held_whoever_is_faster(seed, ratio, minimum, batch, inserts):
    rng = np.random.default_rng(seed)
    limiter = Limiter(LimiterConfig(samples_per_insert=ratio, minimum=minimum), batch, inserts)
    inserted = drawn = 0
    eager = rng.random()
    for _ in range(400):
        may = {"draw": limiter.may_draw(), "insert": limiter.may_insert()}
        assert may["draw"] or may["insert"], "mistake 21: somebody can always go on"
        if may["draw"] and (rng.random() < eager or not may["insert"]):
            limiter.draw(batch)
            drawn += batch
        else:
            count = int(rng.integers(1, inserts + 1))
            limiter.insert(count)
            inserted += count
        if inserted < minimum:
            assert drawn == 0
        slack = max(0.1 * minimum * ratio, batch, ratio * inserts)
        if inserted >= minimum + inserts:
            assert abs(ratio * (inserted - minimum) - drawn) <= 2 * slack + 1e-6


def test_a_restored_limiter_lets_both_go_on():
    """Mistake 21: with the same ratio exactly as before, with another without waiting for what is past."""
    config = LimiterConfig(samples_per_insert=8.0, minimum=100)
    one = Limiter(config, 32, 4)
    one.insert(5000)
    one.draw(8 * 4900)
    for ratio in (8.0, 1.0, 100.0):
        other = Limiter(LimiterConfig(samples_per_insert=ratio, minimum=100), 32, 4)
        other.load_state_dict(one.state_dict())
        assert other.may_draw() and other.may_insert()


def test_waiting_ends_when_the_other_side_moves_and_after_its_time():
    limiter = Limiter(LimiterConfig(samples_per_insert=1.0, minimum=10), 1, 1)
    assert not limiter.wait(to_draw=True, seconds=0.05)
    thread = threading.Timer(0.05, limiter.insert, [10])
    thread.start()
    assert limiter.wait(to_draw=True, seconds=30)
    thread.join()


def test_bad_settings_are_refused():
    for options in ({"samples_per_insert": 0.0}, {"minimum": 0}, {"tolerance": 0.0}):
        with pytest.raises(UsageError, match="must be"):
            LimiterConfig(**options)
