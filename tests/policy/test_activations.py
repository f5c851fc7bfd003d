"""Activations that are computed in another way are what they are called, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from paceline.policy import activations
from paceline.policy.activations import ELU, Tanh, by_exp, by_numpy

INFINITE = float("inf")


@pytest.mark.parametrize(("module", "reference"), [(Tanh(), torch.tanh), (ELU(), functional.elu)])
def test_it_is_what_it_is_called(monkeypatch, module, reference):
    monkeypatch.setattr(activations, "SLOW", True)
    monkeypatch.setattr(activations, "LEAST", 0)
    numbers = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, 1e-4, -1e-4, 100.0, -100.0])])
    plain, fast = numbers.clone().requires_grad_(), numbers.clone().requires_grad_()
    expected, found = reference(plain), module(fast)
    torch.testing.assert_close(found, expected, rtol=0, atol=2.5e-7)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(fast.grad, plain.grad, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(module(numbers), found.detach(), rtol=0, atol=0)
    assert torch.equal(numbers[:3], torch.linspace(-20, 20, 4001)[:3]), "what goes in is left alone"


def test_what_is_no_number():
    assert by_numpy(torch.tensor([INFINITE, -INFINITE])).tolist() == [1.0, -1.0]
    assert by_exp(torch.tensor([INFINITE, -INFINITE])).tolist() == [INFINITE, -1.0]
    nan = torch.tensor([float("nan")])
    assert by_numpy(nan).isnan().all() and by_exp(nan).isnan().all()
