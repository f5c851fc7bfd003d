"""The layer-by-layer scan of an LSTM equals the step-by-step one, forwards and backwards."""

from __future__ import annotations

import pytest
import torch

from paceline.accel.lstm_scan import Pointwise
from paceline.nets.config import CoreConfig
from paceline.nets.cores import Core

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS, COLUMNS, FEATURES, UNITS = 7, 5, 6, 11


def gradients(core: Core, scan, features, starts, state) -> tuple[torch.Tensor, list[torch.Tensor]]:
    core.zero_grad()
    features = features.clone().requires_grad_()
    out = scan(features, starts, state)
    (out.float() * torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)).sum().backward()
    return out.detach(), [features.grad, *(parameter.grad.clone() for parameter in core.parameters())]


def case(layers: int, device: str = "cpu"):
    torch.manual_seed(layers)
    core = Core(FEATURES, CoreConfig(kind="lstm", hidden=UNITS, layers=layers)).to(device)
    features = torch.randn(STEPS, COLUMNS, FEATURES, device=device)
    starts = torch.rand(STEPS, COLUMNS, device=device) < 0.3
    starts[0, 0], starts[0, 1] = True, False
    return core, features, starts, torch.randn(COLUMNS, core.state_size, device=device)


@pytest.mark.parametrize("layers", [1, 2])
def test_layer_by_layer_equals_step_by_step(layers):
    """With states that are reset inside the sequence, and at the first step."""
    core, *inputs = case(layers)
    expected, expected_gradients = gradients(core, core.scan, *inputs)
    out, found = gradients(core, core.scan_layers, *inputs)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    for one, other in zip(found, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_bfloat16_on_a_cpu():
    """Products in bfloat16, the rest in float32: close to float32."""
    core, *inputs = case(1)
    expected, expected_gradients = gradients(core, core.scan_layers, *inputs)
    with torch.autocast("cpu", torch.bfloat16):
        out, found = gradients(core, core.scan_layers, *inputs)
    assert out.dtype == torch.bfloat16
    for one, other in zip([out.float(), *found], [expected, *expected_gradients], strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("layers", [1, 2])
def test_the_triton_kernels_equal_the_operations(layers):
    core, *inputs = case(layers, "cuda")
    core.layer_by_layer = True
    out, found = gradients(core, core.scan, *inputs)
    core.cpu()
    expected, expected_gradients = gradients(core, core.scan, *(tensor.cpu() for tensor in inputs))
    torch.testing.assert_close(out.cpu(), expected, rtol=2e-3, atol=2e-3)
    for one, other in zip(found, expected_gradients, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=5e-3, atol=5e-3)


@pytest.mark.gpu
@gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_kernel_alone(dtype):
    from paceline.accel import lstm_scan_triton

    torch.manual_seed(1)

    def some(*shape, dtype=torch.float32):
        return torch.randn(shape, device="cuda").to(dtype)

    keep, keep_next = (torch.rand(COLUMNS, device="cuda") < 0.7 for _ in range(2))
    keep, keep_next = keep.float(), keep_next.float()
    for units in (UNITS, 512, 700):
        gates_in, product = some(COLUMNS, 4 * units, dtype=dtype), some(COLUMNS, 4 * units, dtype=dtype)
        before, gates = some(COLUMNS, units), some(COLUMNS, 4 * units, dtype=dtype).sigmoid()
        results = []
        for kernels in (lstm_scan_triton, Pointwise):
            made = [torch.empty_like(gates_in), torch.empty_like(before)]
            made += [torch.empty(COLUMNS, units, device="cuda", dtype=dtype) for _ in range(2)]
            kernels.forward_step(gates_in, product, before, keep, keep_next, *made)
            torch.manual_seed(2)
            grads = [some(COLUMNS, units, dtype=dtype), some(COLUMNS, units, dtype=dtype), some(COLUMNS, units)]
            grad_gates = torch.empty_like(gates)
            kernels.backward_step(*grads, gates, before, made[1], keep, keep_next, grad_gates)
            results.append([*made, grads[2], grad_gates])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one.float(), other.float(), rtol=2e-2, atol=2e-2)
