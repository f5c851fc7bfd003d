"""The sum tree against a plain table of priorities."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.experience.sum_tree import SumTree

CPU = torch.device("cpu")


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.one_of(st.integers(1, 40), st.integers(1, 2000)), st.integers(1, 8))
def test_places_are_found_by_their_share(seed, capacity, batches):
    rng = np.random.default_rng(seed)
    tree, table = SumTree(capacity, CPU), np.zeros(capacity)
    for _ in range(batches):
        places = rng.choice(capacity, int(rng.integers(1, capacity + 1)), replace=False)
        priorities = np.where(
            rng.random(len(places)) < 0.3, 0.0, rng.exponential(size=len(places)) * 10.0 ** rng.integers(-3, 4)
        )
        tree.set(torch.from_numpy(places), torch.from_numpy(priorities))
        table[places] = priorities
    np.testing.assert_allclose(tree.of(torch.arange(capacity)).numpy(), table)
    np.testing.assert_allclose(tree.total.item(), table.sum(), rtol=1e-12, atol=1e-12)
    if table.sum() == 0:
        return
    shares = rng.random(200)
    found = tree.find(torch.from_numpy(shares)).numpy()
    assert (table[found] > 0).all(), "what has no priority is never drawn"
    bounds = np.cumsum(table)
    for share, place in zip(shares * table.sum(), found, strict=True):
        slack = 1e-9 * table.sum()
        assert bounds[place] - table[place] - slack <= share <= bounds[place] + slack


def test_frequencies_are_proportional():
    tree = SumTree(4, CPU)
    tree.set(torch.arange(4), torch.tensor([1.0, 0.0, 3.0, 6.0]))
    counts = torch.bincount(tree.find(torch.rand(100_000, dtype=torch.float64)), minlength=4) / 100_000
    torch.testing.assert_close(counts, torch.tensor([0.1, 0.0, 0.3, 0.6]), atol=0.01, rtol=0)


def test_a_place_named_twice_keeps_the_sums_right():
    tree = SumTree(8, CPU)
    tree.set(torch.tensor([3, 3, 5]), torch.tensor([1.0, 1.0, 2.0]))
    assert tree.total.item() == 3.0
