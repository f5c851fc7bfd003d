"""Losses of probability ratios: equal to the papers' in float64 for ordinary log-ratios, and finite for extreme
ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.ops.ppo import approximate_kl, clipped_surrogate, policy_gradient
from paceline.ops.vtrace import vtrace

LOW, HIGH, MAX_RHO = 0.8, 1.2, 1.5
EXTREME = [s * x for x in (0.0, 1.0, 50.0, 88.7, 100.0, 1e4, 1e38) for s in (1, -1)] + [-math.inf]
ADVANTAGES = [-3.0, -1e-3, 0.0, 1e-3, 3.0]


def with_gradient(function, log_ratio: list[float], *others: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The values of a function of log-ratios, and the gradient of their sum."""
    x = torch.tensor(log_ratio, dtype=torch.float32, requires_grad=True)
    found = function(x, *(torch.tensor(other, dtype=torch.float32) for other in others))
    (gradient,) = torch.autograd.grad(found.sum(), x)
    return found.detach().numpy(), gradient.numpy()


def surrogate(log_ratio, advantage):
    return clipped_surrogate(log_ratio, advantage, LOW, HIGH)


def gradient_of_impala(log_ratio, advantage):
    return policy_gradient(log_ratio, advantage, MAX_RHO)


def pairs() -> tuple[list[float], list[float]]:
    both = [(x, a) for x in EXTREME for a in ADVANTAGES]
    return [x for x, _ in both], [a for _, a in both]


def ordinary() -> tuple[list[float], list[float]]:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-15, 15, 500), rng.normal(0, 0.3, 500), [-15.0, 0.0, 15.0]])
    return x.astype(np.float32).tolist(), rng.normal(0, 2, len(x)).astype(np.float32).tolist()


@pytest.mark.parametrize("loss", [surrogate, gradient_of_impala])
def test_losses_and_gradients_are_finite_for_every_log_ratio(loss):
    values, gradient = with_gradient(loss, *pairs())
    assert np.isfinite(values).all() and np.isfinite(gradient).all()


def test_kl_is_finite_for_every_log_ratio():
    values, gradient = with_gradient(approximate_kl, EXTREME)
    assert np.isfinite(values).all() and np.isfinite(gradient).all()
    assert (values >= 0).all()


def test_gradient_of_the_surrogate_is_zero_exactly_where_it_is_clipped():
    """Where it is not 0, it lowers a large ratio with a negative advantage, however large the ratio is."""
    log_ratio, advantage = pairs()
    _, gradient = with_gradient(surrogate, log_ratio, advantage)
    for x, a, g in zip(log_ratio, advantage, gradient, strict=True):
        clipped = (x > math.log(HIGH) and a > 0) or (x < math.log(LOW) and a < 0)
        if clipped or a == 0:
            assert g == 0, (x, a, g)
        elif 0 <= x <= 1e4:  # gradient descent follows the sign of the advantage
            assert np.sign(g) == -np.sign(a), (x, a, g)
        else:
            assert g * a <= 0, (x, a, g)


def test_surrogate_is_the_papers_in_float64_for_ordinary_log_ratios():
    log_ratio, advantage = ordinary()
    values, gradient = with_gradient(surrogate, log_ratio, advantage)
    x, a = (np.array(column, np.float64) for column in (log_ratio, advantage))
    ratio = np.exp(x)
    unclipped, clipped = ratio * a, np.clip(ratio, LOW, HIGH) * a
    np.testing.assert_allclose(values, -np.minimum(unclipped, clipped), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(gradient, np.where(unclipped <= clipped, -unclipped, 0.0), rtol=1e-5, atol=1e-9)


def test_policy_gradient_is_impalas_in_float64_for_ordinary_log_ratios():
    log_ratio, advantage = ordinary()
    values, gradient = with_gradient(gradient_of_impala, log_ratio, advantage)
    x, a = (np.array(column, np.float64) for column in (log_ratio, advantage))
    weight = np.minimum(np.exp(x), MAX_RHO)
    np.testing.assert_allclose(values, -weight * a * x, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(gradient, -weight * a, rtol=1e-5, atol=1e-9)


def test_policy_gradient_keeps_its_weight_at_large_ratios():
    _, gradient = with_gradient(gradient_of_impala, [50.0, 1e4], [2.0, -2.0])
    np.testing.assert_allclose(gradient, [-2 * MAX_RHO, 2 * MAX_RHO])


def test_kl_is_that_of_float64_for_ordinary_log_ratios():
    log_ratio, _ = ordinary()
    x = np.array(log_ratio, np.float64)
    values, gradient = with_gradient(approximate_kl, log_ratio)
    np.testing.assert_allclose(values, np.exp(x) - 1 - x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradient, np.exp(x) - 1, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("largest", [1.0, 1e9, math.inf])
def test_vtrace_is_finite_for_every_log_ratio(largest):
    """Also without truncation."""
    log_ratio = torch.tensor(EXTREME)[None]
    ones, ends = torch.ones_like(log_ratio), torch.zeros_like(log_ratio, dtype=torch.bool)
    found = vtrace(log_ratio, ones, 0.5 * ones, 0 * ones, ends, discount=0.9, max_rho=largest, max_c=largest)
    assert all(part.isfinite().all() for part in found)
