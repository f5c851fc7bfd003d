"""Past selves: spread over training, and drawn as often as they should be."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from paceline.population.past_selves import PastSelves


@pytest.mark.parametrize("keep", [2, 4, 16])
@pytest.mark.parametrize("seed", range(3))
def test_snapshots_stay_spread_over_training(keep, seed):
    """At irregular intervals of up to three times the shortest."""
    generator, past, present = np.random.default_rng(seed), PastSelves(keep), set()
    step, first = 0, None
    for _ in range(600):
        step += int(generator.integers(10, 31))
        first = first or step
        dropped = past.add(step)
        present = present - set(dropped) | {step}
        assert set(past.steps) == present and len(present) <= keep and past.steps == sorted(present)
        assert past.steps[0] == first and past.steps[-1] == step
        if keep > 2 and step > 30 * 10 * keep:
            gaps = [after - before for before, after in itertools.pairwise(past.steps)]
            assert max(gaps) < 2.5 * (step - first) / (keep - 1)


def test_snapshots_have_rising_steps():
    past = PastSelves(4)
    past.add(130)
    with pytest.raises(ValueError, match="130"):
        past.add(130)


def test_past_selves_are_drawn_alike():
    past, generator, drawn = PastSelves(8), np.random.default_rng(0), Counter()
    assert past.draw(2, generator) == []
    for step in range(4):
        past.add(step)
    for _ in range(2000):
        pair = past.draw(2, generator)
        assert len(set(pair)) == 2
        drawn.update(pair)
    assert all(900 < drawn[step] < 1100 for step in range(4))
    assert sorted(past.draw(9, generator)) == [0, 1, 2, 3]


def test_past_selves_that_still_win_are_drawn_more_often():
    past, generator, drawn = PastSelves(8), np.random.default_rng(0), Counter()
    for step in range(4):
        past.add(step)
    rates = {0: 1.0, 1: 0.0, 2: 0.8}
    for _ in range(4000):
        drawn.update(past.draw(1, generator, rates))
    total = 1.0 + 0.04 + 0.25
    assert drawn[0] <= 1
    for step, weight in ((1, 1.0), (2, 0.04), (3, 0.25)):
        assert drawn[step] == pytest.approx(4000 * weight / total, abs=110)
    assert len(past.draw(4, generator, dict.fromkeys(range(4), 1.0))) == 4, "also if all are beaten"


def test_the_pool_continues():
    past, again = PastSelves(3), PastSelves(3)
    for step in (1, 2, 3):
        past.add(step)
    again.load_state_dict(past.state_dict())
    assert again.add(9) == past.add(9)
    smaller = PastSelves(2)
    smaller.load_state_dict({"steps": [1, 5, 9]})
    assert sorted(smaller.add(12)) == [5, 9]
