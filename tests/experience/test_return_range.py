"""The range of discounted returns against returns that are computed backwards."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.experience.return_range import ReturnRange


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 40))
def test_it_is_that_of_whole_episodes(seed, slots, turns):
    rng = np.random.default_rng(seed)
    found, running, returns = ReturnRange(slots, 0.9), [[] for _ in range(slots)], []
    for _ in range(turns):
        chosen = np.sort(rng.choice(slots, int(rng.integers(1, slots + 1)), replace=False))
        reward, kind = rng.normal(size=len(chosen)), rng.choice(3, len(chosen), p=[0.8, 0.15, 0.05])
        found.observe(chosen, reward, kind == 1, kind == 2)
        for slot, r, k in zip(chosen, reward, kind, strict=True):
            running[slot].append(r)
            if k == 1:
                total = 0.0
                for value in reversed(running[slot]):
                    total = value + 0.9 * total
                returns.append(total)
            if k:
                running[slot] = []
    if returns:
        assert np.isclose(found.low, min(returns)) and np.isclose(found.high, max(returns))
    else:
        assert not found.exceeds(-1e9, 1e9)


def test_bounds_are_exceeded_on_either_side():
    found = ReturnRange(1, 0.5)
    one, no = np.zeros(1, np.int64), np.zeros(1, bool)
    found.observe(one, np.array([4.0]), no, no)
    found.observe(one, np.array([2.0]), ~no, no)
    assert (found.low, found.high) == (5.0, 5.0)
    assert not found.exceeds(0.0, 5.0) and found.exceeds(0.0, 4.9) and found.exceeds(5.1, 6.0)
