"""Encoders: one observation leaf to one feature vector.

Legend: B rows, C channels, H x W pixels.

Every encoder is built from the shape of its leaf, maps [B, *leaf_shape] to [B, out_features], and says `out_features`.
Images are channel-first. uint8 is scaled to [0, 1] inside, so that bytes and not floats travel to the device; floats
are taken as they come.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UsageError

Activation = Literal["tanh", "relu", "elu"]
Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "elu": nn.ELU}


def as_float(obs: Tensor) -> Tensor:
    """`obs` in floating point: bytes in [0, 1], other integers as they are, floats untouched."""
    if obs.dtype == torch.uint8:
        return obs * (1 / 255)  # cast and scaled in one pass over memory
    return obs if obs.is_floating_point() else obs.float()


class VectorEncoder(nn.Module):
    """A multi-layer perceptron over the flattened leaf; without hidden sizes, the leaf itself."""

    def __init__(
        self, leaf_shape: Sequence[int], *, hidden_sizes: Sequence[int] = (64, 64), activation: Activation = "tanh"
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UsageError(f"activation {activation!r} does not exist; allowed: {', '.join(ACTIVATIONS)}")
        if any(size < 1 for size in hidden_sizes):
            raise UsageError(f"hidden sizes must be at least 1, got {tuple(hidden_sizes)}")
        self._leaf_size = width = math.prod(leaf_shape)
        layers: list[nn.Module] = []
        for size in hidden_sizes:
            layers += [orthogonal(nn.Linear(width, size), math.sqrt(2)), ACTIVATIONS[activation]()]
            width = size
        self.layers = nn.Sequential(*layers)
        self.out_features = width

    def forward(self, obs: Tensor) -> Tensor:
        return self.layers(as_float(obs).reshape(-1, self._leaf_size))


class Conv(NamedTuple):
    """One convolution without padding."""

    channels: int
    kernel: int
    stride: int


class ConvEncoder(nn.Module):
    """Convolutions without padding, then one fully connected layer; the same activation after each."""

    def __init__(
        self, leaf_shape: Sequence[int], *, convs: Sequence[Conv], hidden: int, activation: Activation, gain: float
    ) -> None:
        super().__init__()
        channels = check_image(leaf_shape, least=_least_side(convs), encoder=type(self).__name__)
        layers: list[nn.Module] = []
        for conv in convs:
            layers += [
                orthogonal(nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride), gain),
                ACTIVATIONS[activation](),
            ]
            channels = conv.channels
        self.convs = nn.Sequential(*layers)
        self.linear = orthogonal(nn.Linear(flat_features(self.convs, leaf_shape), hidden), gain)
        self.activation = ACTIVATIONS[activation]()
        self.out_features = hidden

    def forward(self, obs: Tensor) -> Tensor:
        return self.activation(self.linear(self.convs(as_float(obs)).flatten(1)))


class NatureCNN(ConvEncoder):
    """The network of Mnih et al., "Human-level control through deep reinforcement learning", 2015."""

    def __init__(self, leaf_shape: Sequence[int], *, hidden: int = 512) -> None:
        convs = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1))
        super().__init__(leaf_shape, convs=convs, hidden=hidden, activation="relu", gain=math.sqrt(2))


class CompactConv(ConvEncoder):
    """A network for small images (32x32) on a CPU: a fifth of the arithmetic of `NatureCNN` on as many pixels."""

    def __init__(self, leaf_shape: Sequence[int], *, hidden: int = 128) -> None:
        convs = (Conv(16, 5, 2), Conv(32, 4, 2), Conv(32, 4, 2))
        super().__init__(leaf_shape, convs=convs, hidden=hidden, activation="relu", gain=math.sqrt(2))


class SampleFactoryConv(ConvEncoder):
    """The network of Petrenko et al., "Sample Factory", 2020, for Doom and DMLab."""

    def __init__(self, leaf_shape: Sequence[int], *, hidden: int = 512) -> None:
        convs = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(128, 3, 2))
        super().__init__(leaf_shape, convs=convs, hidden=hidden, activation="elu", gain=1.0)


class ImpalaResNet(nn.Module):
    """The deep network of Espeholt et al., "IMPALA", 2018: three sections, each a convolution, a pool of stride 2 and
    two residual blocks. `width` multiplies the channels 16, 32, 32. Any image size is allowed."""

    def __init__(self, leaf_shape: Sequence[int], *, width: int = 1, hidden: int = 256) -> None:
        super().__init__()
        if width < 1:
            raise UsageError(f"the width multiplier of ImpalaResNet must be at least 1, got {width}")
        channels = check_image(leaf_shape, least=1, encoder="ImpalaResNet")
        sections: list[nn.Module] = []
        for out_channels in (16 * width, 32 * width, 32 * width):
            sections += [
                nn.Conv2d(channels, out_channels, 3, padding=1),
                nn.MaxPool2d(3, stride=2, padding=1),
                _ImpalaBlock(out_channels),
                _ImpalaBlock(out_channels),
            ]
            channels = out_channels
        self.sections = nn.Sequential(*sections)
        self.linear = nn.Linear(flat_features(self.sections, leaf_shape), hidden)
        self.out_features = hidden

    def forward(self, obs: Tensor) -> Tensor:
        return F.relu(self.linear(F.relu(self.sections(as_float(obs))).flatten(1)))


class _ImpalaBlock(nn.Module):
    """x + conv(relu(conv(relu(x)))): nothing after the sum, so that the identity path stays linear."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


def orthogonal(layer: Layer, gain: float) -> Layer:
    """`layer`, with orthogonal weights times `gain` and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def check_image(leaf_shape: Sequence[int], *, least: int, encoder: str) -> int:
    """The channels of an image leaf [C, H, W] with sides of at least `least` pixels; anything else is refused."""
    if len(leaf_shape) != 3:
        raise UsageError(f"{encoder} needs images [channels, height, width], got a leaf of shape {tuple(leaf_shape)}")
    channels, height, width = leaf_shape
    if min(height, width) < least:
        raise UsageError(f"{encoder} needs images of at least {least}x{least} pixels, got {height}x{width}")
    return channels


def flat_features(body: nn.Module, leaf_shape: Sequence[int]) -> int:
    """How many features `body` gives for one leaf, found without computing any."""
    shadow = copy.deepcopy(body).to("meta")
    return shadow(torch.empty(1, *leaf_shape, device="meta")).numel()


def _least_side(convs: Sequence[Conv]) -> int:
    """The smallest side that leaves one pixel after all convolutions."""
    side = 1
    for conv in reversed(convs):
        side = (side - 1) * conv.stride + conv.kernel
    return side
