"""Encoders: published layer sizes, bytes and floats, and error messages."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from paceline.accel.activations import ELU
from paceline.errors import UsageError
from paceline.nets.encoders import (
    ImpalaResNet,
    NatureCNN,
    PatchEncoder,
    SampleFactoryConv,
    VectorEncoder,
    as_float,
)

IMAGE_ENCODERS = [NatureCNN, SampleFactoryConv, ImpalaResNet]


def num_params(module: nn.Module) -> int:
    return sum(values.numel() for values in module.parameters())


@pytest.mark.parametrize("encoder", IMAGE_ENCODERS)
@pytest.mark.parametrize("shape", [(4, 84, 84), (3, 72, 128), (1, 36, 61)])
def test_any_image_size_gives_out_features(encoder, shape):
    module = encoder(shape, hidden=24)
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    assert module(images).shape == (2, module.out_features) == (2, 24)


@pytest.mark.parametrize("encoder", IMAGE_ENCODERS)
def test_bytes_are_scaled_and_floats_are_not(encoder):
    module = encoder((3, 40, 44), hidden=16)
    images = torch.randint(0, 256, (2, 3, 40, 44), dtype=torch.uint8)
    torch.testing.assert_close(module(images), module(images.float() / 255))
    assert not torch.allclose(module(images), module(images.float()))


def test_as_float():
    assert as_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    assert as_float(torch.tensor([3])).dtype == torch.float32
    values = torch.rand(3)
    assert as_float(values) is values


def test_parameter_counts_by_hand():
    with torch.device("meta"):  # shapes only: nothing is computed
        check_parameter_counts()


def check_parameter_counts():
    assert num_params(NatureCNN((4, 84, 84))) == 1_684_128  # Mnih et al.'s network without its last layer
    conv = (3 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 128
    assert num_params(SampleFactoryConv((3, 72, 128))) == conv + (128 * 3 * 6 + 1) * 512
    first, second = (27 + 1) * 16 + 4 * (144 + 1) * 16, (144 + 1) * 32 + 4 * (288 + 1) * 32
    third = 5 * (288 + 1) * 32
    assert num_params(ImpalaResNet((3, 64, 64))) == first + second + third + (32 * 8 * 8 + 1) * 256


def test_vector_encoder_layers():
    module = VectorEncoder((2, 4), hidden_sizes=(8, 5), activation="elu")
    assert [type(layer) for layer in module.layers] == [nn.Linear, ELU, nn.Linear, ELU]
    assert module(torch.rand(7, 6)).shape == (7, module.out_features) == (7, 5)


def test_vector_encoder_is_orthogonal_with_gain():
    weight = VectorEncoder((6,), hidden_sizes=(4,)).layers[0].weight
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(4))


def test_vector_encoder_without_layers_is_the_leaf():
    module = VectorEncoder((2, 4), hidden_sizes=())
    values = torch.rand(4, 6)
    assert module.out_features == 6
    assert torch.equal(module(values), values)


def test_vector_encoder_embeds_each_observation_by_itself():
    module = VectorEncoder((2, 4), hidden_sizes=(), embedding=3)
    values = torch.rand(5, 6)
    first, second = module.embeddings
    expected = torch.cat(
        [values[:, :2] @ first.weight.T + first.bias, values[:, 2:] @ second.weight.T + second.bias], 1
    )
    assert module.out_features == 6
    torch.testing.assert_close(module(values), expected)


@pytest.mark.parametrize("embedding", [0, 5])
def test_vector_encoder_reduces_an_observation_before_it_is_joined(embedding):
    module = VectorEncoder((2, 4), hidden_sizes=(7,), embedding=embedding, reduced=[1], reduced_hidden=(6, 3))
    values = torch.rand(5, 6)
    whole, (first, _, second, _) = module.embeddings
    reduced = F.elu(second(F.elu(first(values[:, 2:]))))
    expected = module.layers(torch.cat([whole(values[:, :2]), reduced], 1))
    assert module.widths == [embedding or 2, 3] and first.out_features == 6 and module.out_features == 7
    torch.testing.assert_close(module(values), expected)


def test_scalar_leaf():
    assert VectorEncoder((1,), hidden_sizes=(3,))(torch.rand(5)).shape == (5, 3)


def test_gain_of_the_conv_layers():
    weight = NatureCNN((4, 84, 84), hidden=8).convs[0].weight.flatten(1)
    torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(32), atol=1e-5, rtol=0)
    weight = SampleFactoryConv((3, 40, 40), hidden=8).linear.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(8), atol=1e-5, rtol=0)


@pytest.mark.parametrize("encoder", [NatureCNN, SampleFactoryConv])
def test_the_smallest_image_works_and_a_smaller_one_is_refused(encoder):
    assert encoder((1, 36, 36), hidden=4)(torch.rand(1, 1, 36, 36)).shape == (1, 4)
    with pytest.raises(UsageError, match="at least 36x36 pixels, got 35x90"):
        encoder((1, 35, 90))


def test_error_messages_say_what_is_allowed():
    with pytest.raises(UsageError, match="tanh, relu, elu"):
        VectorEncoder((3,), activation="gelu")
    with pytest.raises(UsageError, match="at least 1"):
        VectorEncoder((3,), hidden_sizes=(8, 0))
    with pytest.raises(UsageError, match=r"\[channels, height, width\]"):
        NatureCNN((84, 84))


@pytest.mark.parametrize("encoder", IMAGE_ENCODERS)
def test_gradients_reach_every_parameter(encoder):
    module = encoder((3, 40, 40), hidden=8)
    module(torch.rand(2, 3, 40, 40)).sum().backward()
    assert all(values.grad is not None for values in module.parameters())


def test_patches_are_convolutions_whose_stride_is_their_kernel():
    """The matrix products equal torch's convolutions with the same weights."""
    module = PatchEncoder((3, 16, 24), hidden=8)
    images = torch.rand(2, 3, 16, 24)
    patches = F.conv2d(images, module.patch.weight.view(32, 3, 4, 4), module.patch.bias, stride=4).relu()
    # Merged features are ordered by position, a convolution's weights by channel.
    weights = module.merge.weight.view(64, 2, 2, 32).permute(0, 3, 1, 2)
    merged = F.conv2d(patches, weights, module.merge.bias, stride=2).relu()
    expected = F.relu(module.linear(merged.permute(0, 2, 3, 1).flatten(1)))
    torch.testing.assert_close(module(images), expected)


def test_patches_need_sides_that_are_multiples_of_8():
    with pytest.raises(UsageError, match="multiples of 8, got 36x32"):
        PatchEncoder((1, 36, 32))
    with pytest.raises(UsageError, match="at least 8x8"):
        PatchEncoder((1, 4, 8))
