"""Fast activations equal PyTorch's, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from paceline.accel import activations
from paceline.accel.activations import ELU, Tanh, by_exp, by_numpy

INFINITE = float("inf")


@pytest.fixture(autouse=True)
def fast_on_any_processor(monkeypatch):
    monkeypatch.setattr(activations, "ON_ARM", True)
    monkeypatch.setattr(activations, "LEAST_FOR_TANH", 0)
    monkeypatch.setattr(activations, "LEAST_FOR_ELU", 0)


@pytest.mark.parametrize(("module", "reference"), [(Tanh(), torch.tanh), (ELU(), functional.elu)])
def test_results_and_gradients_equal_those_of_pytorch(module, reference):
    numbers = torch.cat([torch.linspace(-20, 20, 4001), torch.tensor([0.0, 1e-4, -1e-4, 100.0, -100.0])])
    plain, fast = numbers.clone().requires_grad_(), numbers.clone().requires_grad_()
    expected, found = reference(plain), module(fast)
    torch.testing.assert_close(found, expected, rtol=0, atol=2.5e-7)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(fast.grad, plain.grad, rtol=1e-6, atol=1e-6)
    with torch.no_grad():
        torch.testing.assert_close(module(numbers), found.detach(), rtol=0, atol=0)
    assert torch.equal(numbers[:3], torch.linspace(-20, 20, 4001)[:3]), "the input is not changed"


def test_infinity_and_nan():
    assert by_numpy(torch.tensor([INFINITE, -INFINITE])).tolist() == [1.0, -1.0]
    assert by_exp(torch.tensor([INFINITE, -INFINITE])).tolist() == [INFINITE, -1.0]
    nan = torch.tensor([float("nan")])
    assert by_numpy(nan).isnan().all() and by_exp(nan).isnan().all()


@pytest.mark.parametrize("layout", ["rows", "channels last", "neither"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_elu_of_images(monkeypatch, dtype, layout):
    """More than a chunk, in any memory layout; in bfloat16 as exact as PyTorch's, also near 0."""
    monkeypatch.setattr(activations, "CHUNK", 100)
    images = torch.randn(3, 4, 5, 7).pow(3).to(dtype)
    if layout == "channels last":
        images = images.contiguous(memory_format=torch.channels_last)
    if layout == "neither":
        images = images.transpose(1, 3)
    plain, fast = images.clone().requires_grad_(), images.clone().requires_grad_()
    expected, found = functional.elu(plain), ELU()(fast)
    torch.testing.assert_close(found, expected, rtol=1e-6 if dtype == torch.float32 else 2**-8, atol=2.5e-7)
    assert layout == "neither" or found.stride() == images.stride()
    toward = torch.randn_like(expected)
    expected.backward(toward)
    found.backward(toward)
    # A slope is 1 plus the result. In bfloat16 the result and both gradients are rounded: three times half a unit.
    off = (fast.grad - plain.grad).float().abs()
    assert (off <= (1e-6 if dtype == torch.float32 else 3 * 2**-9) * (1 + toward.float().abs())).all()
