"""tanh by NumPy is tanh, forwards and backwards."""

from __future__ import annotations

import torch

from paceline.policy import activations
from paceline.policy.activations import Tanh, by_numpy


def test_it_is_tanh(monkeypatch):
    monkeypatch.setattr(activations, "SLOW_TANH", True)
    monkeypatch.setattr(activations, "LEAST", 0)
    numbers = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, 1e-4, -1e-4, 100.0, -100.0])])
    plain, fast = numbers.clone().requires_grad_(), numbers.clone().requires_grad_()
    expected, found = plain.tanh(), Tanh()(fast)
    torch.testing.assert_close(found, expected, rtol=0, atol=2.5e-7)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(fast.grad, plain.grad, rtol=0, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(Tanh()(numbers), found.detach(), rtol=0, atol=0)
    assert torch.equal(numbers[:3], torch.linspace(-20, 20, 4001)[:3]), "what goes in is left alone"
    assert by_numpy(torch.tensor([float("inf"), -float("inf")])).tolist() == [1.0, -1.0]
    assert by_numpy(torch.tensor([float("nan")])).isnan().all()
