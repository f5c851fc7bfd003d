"""The projection of distributions onto atoms, against a loop over atoms."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.ops.categorical import atoms, cross_entropy, mean, project


def by_hand(values, probabilities, support):
    """D4PG's appendix B, atom by atom."""
    result = np.zeros_like(probabilities)
    spacing = support[1] - support[0]
    for row in range(len(values)):
        for value, mass in zip(values[row], probabilities[row], strict=True):
            value = min(max(value, support[0]), support[-1])
            for i, atom in enumerate(support):
                result[row, i] += mass * max(0.0, 1.0 - abs(value - atom) / spacing)
    return result


@settings(max_examples=50)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 12), st.floats(0.1, 30.0))
def test_projection_is_the_papers(seed, rows, count, width):
    rng = np.random.default_rng(seed)
    low = rng.normal() * 5
    support = np.linspace(low, low + width, count)
    values = rng.uniform(low - width, low + 2 * width, (rows, count))
    probabilities = rng.dirichlet(np.ones(count), rows)
    found = project(torch.from_numpy(values), torch.from_numpy(probabilities), torch.from_numpy(support)).numpy()
    np.testing.assert_allclose(found, by_hand(values, probabilities, support), atol=1e-9)
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-12)


def test_mass_is_kept_at_the_edges_and_on_atoms():
    """Mistake 22: values on atoms, on the bounds and beyond them."""
    support = atoms(-1.0, 1.0, 5)
    values = torch.tensor([[-1.0, -0.5, 0.0, 0.5, 1.0], [-9.0, -1.0, 1.0, 9.0, 0.25]])
    probabilities = torch.tensor([[0.1, 0.2, 0.3, 0.2, 0.2], [0.1, 0.2, 0.3, 0.2, 0.2]])
    found = project(values, probabilities, support)
    torch.testing.assert_close(found[0], probabilities[0])
    torch.testing.assert_close(found[1], torch.tensor([0.3, 0.0, 0.1, 0.1, 0.5]))


def test_the_mean_is_kept_inside_the_support():
    torch.manual_seed(0)
    support = atoms(-10.0, 10.0, 51)
    values, probabilities = torch.empty(64, 51).uniform_(-10, 10), torch.rand(64, 51).softmax(1)
    found = project(values, probabilities, support)
    torch.testing.assert_close((found * support).sum(1), (values * probabilities).sum(1), rtol=1e-4, atol=1e-4)


def test_cross_entropy_is_least_where_predictions_are_right():
    support = atoms(0.0, 4.0, 5)
    target = torch.tensor([[0.0, 0.25, 0.5, 0.25, 0.0]])
    logits = torch.zeros(1, 5, requires_grad=True)
    for _ in range(500):
        (gradient,) = torch.autograd.grad(cross_entropy(logits, target).sum(), logits)
        logits = (logits - 1.0 * gradient).detach().requires_grad_()
    torch.testing.assert_close(logits.softmax(1), target, atol=2e-2, rtol=0)
    assert mean(logits, support).item() == torch.tensor(2.0) or abs(mean(logits, support).item() - 2.0) < 0.05
