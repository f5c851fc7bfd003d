"""Convolutions as matrix products, of bytes and of blocks equal PyTorch's, gradients included."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from paceline.accel import block_convolution as blocks
from paceline.accel.kernels import choose_precision
from paceline.accel.matrix_convolution import CHUNK, convolve
from paceline.nets.encoders import NatureCNN, SampleFactoryConv, as_float
from paceline.nets.own_policy import OwnPolicy


@settings(max_examples=40)
@given(
    size=st.integers(1, 5),
    stride=st.integers(1, 4),
    extra=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    channels=st.integers(1, 3),
    outputs=st.integers(1, 3),
    batch=st.sampled_from([1, 2, CHUNK, CHUNK + 3]),
    seed=st.integers(0, 1000),
)
def test_matrix_products_equal_torchs_convolution(size, stride, extra, channels, outputs, batch, seed):
    torch.manual_seed(seed)
    images = torch.randn(batch, channels, size + extra[0], size + extra[1], dtype=torch.float64, requires_grad=True)
    weight = torch.randn(outputs, channels, size, size, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(outputs, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(images, weight, bias, stride)
    seen = torch.randn_like(expected)
    gradients = torch.autograd.grad((expected * seen).sum(), (images, weight, bias))
    actual = convolve(images.permute(0, 2, 3, 1).contiguous(), weight, bias, stride).permute(0, 3, 1, 2)
    torch.testing.assert_close(actual, expected)
    for mine, theirs in zip(torch.autograd.grad((actual * seen).sum(), (images, weight, bias)), gradients, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("encoder", [NatureCNN, SampleFactoryConv])
def test_an_encoder_gives_the_same_with_every_layout(encoder):
    torch.manual_seed(0)
    module = encoder((4, 84, 84), hidden=16)
    images = torch.randint(0, 256, (5, 4, 84, 84), dtype=torch.uint8)
    results = []
    for module.as_matrices, module.channels_last in ((False, False), (True, False), (False, True)):
        module.zero_grad()
        out = module(images)
        out.square().sum().backward()
        results.append((out.detach(), [values.grad.clone() for values in module.parameters()]))
    for out, gradients in results[1:]:
        torch.testing.assert_close(results[0][0], out, rtol=1e-4, atol=1e-5)
        for one, other in zip(results[0][1], gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("encoder", [NatureCNN, SampleFactoryConv])
def test_bytes_in_bfloat16_are_as_exact_as_scaled_floats(encoder, channels_last):
    torch.manual_seed(0)
    module = encoder((3, 48, 48), hidden=16)
    module.channels_last = channels_last
    images = torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8)

    def computed(images: torch.Tensor, halved: bool) -> torch.Tensor:
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=halved, cache_enabled=False):
            out = module(images).float()
        out.square().sum().backward()
        return torch.cat([out.detach().flatten(), *(values.grad.flatten() for values in module.parameters())])

    exact = computed(images, halved=False)
    off_scaled, off_bytes = (computed(given, halved=True) - exact for given in (as_float(images), images))
    assert 0 < off_scaled.norm() < 0.1 * exact.norm()
    assert off_bytes.norm() < 1.5 * off_scaled.norm() and not torch.equal(off_bytes, off_scaled)


@pytest.mark.parametrize("amx", [False, True])
def test_auto_precision_is_bfloat16_for_convolutions_on_cpus_with_amx(monkeypatch, amx):
    monkeypatch.setattr("paceline.accel.kernels.has_amx", lambda: amx)
    for has_convolutions in (False, True):
        policy = SimpleNamespace(has_convolutions=has_convolutions, has_exact_last_layers=True)
        expected = torch.bfloat16 if amx and has_convolutions else torch.float32
        assert choose_precision(policy, "auto", torch.device("cpu")) == expected
        assert choose_precision(policy, "auto", torch.device("cuda")) == torch.float32
        assert choose_precision(policy, "bfloat16", torch.device("cpu")) == torch.bfloat16
        assert choose_precision(policy, "float32", torch.device("cpu")) == torch.float32


def test_auto_precision_is_float32_for_a_policy_that_may_compute_values_in_any_precision(monkeypatch):
    monkeypatch.setattr("paceline.accel.kernels.has_amx", lambda: True)
    policy = SimpleNamespace(has_convolutions=True, has_exact_last_layers=OwnPolicy.has_exact_last_layers)
    assert choose_precision(policy, "auto", torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("channels", "kernel", "stride"), [(1, 8, 4), (3, 8, 4), (4, 8, 4), (3, 4, 2), (1, 6, 3), (5, 2, 2)]
)
def test_blocks_of_pixels_give_the_same_convolution(channels, kernel, stride, offset):
    """With integers, which bfloat16 represents well: the same results and gradients."""
    torch.manual_seed(0)
    conv = nn.Conv2d(channels, 6, kernel, stride)
    with torch.no_grad():
        conv.weight.copy_(torch.randint(-1, 2, conv.weight.shape))
        conv.bias.copy_(torch.randint(-3, 4, conv.bias.shape))
    # Images may begin anywhere in memory.
    images = (torch.rand(offset + 2 * channels * 24 * 36) < 0.3).to(torch.uint8)[offset:].view(2, channels, 24, 36)
    assert blocks.suits(images, conv)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        found = blocks.convolve(images, conv.weight, conv.bias, stride)
    expected = conv(images.float())
    torch.testing.assert_close(found.float(), expected, rtol=2**-8, atol=0)
    toward = torch.randint(-1, 2, expected.shape)
    both = [torch.autograd.grad((out.float() * toward).sum(), list(conv.parameters())) for out in (found, expected)]
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=2**-8, atol=0.5)


@pytest.mark.parametrize(
    ("kernel", "stride", "sides"), [(8, 4, (30, 32)), (8, 4, (32, 34)), (3, 1, (32, 32)), (3, 2, (32, 32))]
)
def test_images_or_windows_without_whole_blocks_do_not_suit(kernel, stride, sides):
    images = torch.zeros((2, 3, *sides), dtype=torch.uint8)
    assert not blocks.suits(images, nn.Conv2d(3, 6, kernel, stride))


def test_images_with_channels_last_do_not_suit():
    images = torch.zeros((2, 32, 32, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    assert not blocks.suits(images, nn.Conv2d(3, 6, 8, 4)) and blocks.suits(images.contiguous(), nn.Conv2d(3, 6, 8, 4))


def test_blocks_can_be_compiled():
    torch.manual_seed(0)
    module = SampleFactoryConv((3, 48, 48), hidden=16)
    module.channels_last = True
    images = torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8)
    found = []
    for compute in (module, torch.compile(module, backend="aot_eager")):
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            compute(images).float().square().sum().backward()
        found.append(module.convs[0].weight.grad.clone())
    plain, compiled = found
    assert plain.norm() > 0 and (plain - compiled).norm() < 0.02 * plain.norm()
