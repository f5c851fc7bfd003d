"""Encoders: one observation leaf to one feature vector.

Legend: B rows, C channels, H x W pixels.

An encoder is built from the shape of its leaf, maps [B, *leaf_shape] to [B, out_features], and has `out_features`.
Images are channel-first. Encoders scale uint8 to [0, 1] themselves, so that bytes and not floats travel to the device.
Floats are taken as they come.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.accel import block_convolution as blocks
from paceline.accel.matrix_convolution import convolve
from paceline.errors import UsageError
from paceline.nets.layers import as_float, make_activation, orthogonal


class VectorEncoder(nn.Module):
    """A multi-layer perceptron over flat observations side by side; without hidden sizes, the observations themselves.

    With an `embedding`, each observation first goes through a linear layer of its own, to that many features. The
    observations with the numbers `reduced` go through layers of the sizes `reduced_hidden` instead.
    """

    def __init__(
        self,
        leaf_sizes: Sequence[int],
        *,
        hidden_sizes: Sequence[int] = (64, 64),
        activation: str = "tanh",
        embedding: int = 0,
        reduced: Collection[int] = (),
        reduced_hidden: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if any(size < 1 for size in hidden_sizes):
            raise UsageError(f"hidden sizes must be at least 1, got {tuple(hidden_sizes)}")
        self._leaf_sizes, self._width = list(leaf_sizes), sum(leaf_sizes)
        self.embeddings = nn.ModuleList()
        """For each observation, if there is an embedding or if any observation is reduced."""
        self.widths = list(leaf_sizes)
        """Features of each observation where they are joined."""
        for number, size in enumerate(leaf_sizes if embedding or reduced else ()):
            if number in reduced:
                self.embeddings.append(nn.Sequential(*_layers(size, reduced_hidden, "elu")))
            else:
                self.embeddings.append(orthogonal(nn.Linear(size, embedding), 1.0) if embedding else nn.Identity())
            self.widths[number] = reduced_hidden[-1] if number in reduced else embedding or size
        self.layers = nn.Sequential(*_layers(sum(self.widths), hidden_sizes, activation))
        self.out_features = hidden_sizes[-1] if hidden_sizes else sum(self.widths)

    def forward(self, obs: Tensor) -> Tensor:
        x = as_float(obs).reshape(-1, self._width)
        if self.embeddings:
            leaves = zip(self.embeddings, x.split(self._leaf_sizes, 1), strict=True)
            x = torch.cat([layer(leaf) for layer, leaf in leaves], 1)
        for layer in self.layers:
            x = layer.forward(x)  # not called: a module's hooks take as long as a small layer's arithmetic
        return x


def _layers(width: int, hidden_sizes: Sequence[int], activation: str) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for size in hidden_sizes:
        layers += [orthogonal(nn.Linear(width, size), math.sqrt(2)), make_activation(activation)]
        width = size
    return layers


class Conv(NamedTuple):
    """One convolution without padding."""

    channels: int
    kernel: int
    stride: int


class ConvEncoder(nn.Module):
    """Convolutions without padding, then one fully connected layer; the same activation after each."""

    def __init__(
        self, leaf_shape: Sequence[int], *, convs: Sequence[Conv], hidden: int, activation: str, gain: float
    ) -> None:
        super().__init__()
        channels = check_image(leaf_shape, least=_least_side(convs), encoder="nature")
        layers: list[nn.Module] = []
        for conv in convs:
            layers.append(orthogonal(nn.Conv2d(channels, conv.channels, conv.kernel, conv.stride), gain))
            layers.append(make_activation(activation))
            channels = conv.channels
        self.convs = nn.Sequential(*layers)
        self.linear = orthogonal(nn.Linear(flat_features(self.convs, leaf_shape), hidden), gain)
        self.activation = make_activation(activation)
        self.out_features = hidden
        self.as_matrices = False
        """Compute convolutions as matrix products (`accel/matrix_convolution.py`)."""
        self.channels_last = False
        """Lay images out pixel by pixel, or bytes in bfloat16 block by block (`accel/block_convolution.py`)."""

    def forward(self, obs: Tensor) -> Tensor:
        if self.as_matrices:
            features = self._convolve_as_matrices(as_float(obs))
        elif obs.dtype == torch.uint8 and _computes_in_bfloat16(obs.device):
            features = self._convolve_bytes(obs)
        else:
            images = as_float(obs)
            features = self.convs(
                images.contiguous(memory_format=torch.channels_last) if self.channels_last else images
            )
        return self.activation(self.linear(features.flatten(1)))

    def _convolve_bytes(self, obs: Tensor) -> Tensor:
        """In bfloat16, which represents all integers up to 256: bytes go in unscaled, in one pass over memory instead
        of three, and the first layer's weights are scaled instead."""
        first, *others = self.convs
        assert isinstance(first, nn.Conv2d)
        weight = first.weight * (1 / 255)
        if self.channels_last and blocks.suits(obs, first):
            images = blocks.convolve(obs, weight, first.bias, first.stride[0])
        else:
            layout = torch.channels_last if self.channels_last else torch.contiguous_format
            images = F.conv2d(obs.to(torch.bfloat16, memory_format=layout), weight, first.bias, first.stride)
        for layer in others:
            images = layer(images)
        return images

    def _convolve_as_matrices(self, images: Tensor) -> Tensor:
        images = images.permute(0, 2, 3, 1).contiguous()
        for layer in self.convs:
            if isinstance(layer, nn.Conv2d):
                assert layer.bias is not None
                images = convolve(images, layer.weight, layer.bias, int(layer.stride[0]))
            else:
                images = layer(images)
        return images.permute(0, 3, 1, 2)


class NatureCNN(ConvEncoder):
    """The network of Mnih et al., "Human-level control through deep reinforcement learning", 2015."""

    def __init__(self, leaf_shape: Sequence[int], *, hidden: int = 512) -> None:
        convs = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(64, 3, 1))
        super().__init__(leaf_shape, convs=convs, hidden=hidden, activation="relu", gain=math.sqrt(2))


class SampleFactoryConv(ConvEncoder):
    """The network of Petrenko et al., "Sample Factory", 2020, for Doom and DMLab."""

    def __init__(self, leaf_shape: Sequence[int], *, hidden: int = 512) -> None:
        convs = (Conv(32, 8, 4), Conv(64, 4, 2), Conv(128, 3, 2))
        super().__init__(leaf_shape, convs=convs, hidden=hidden, activation="elu", gain=1.0)


class PatchEncoder(nn.Module):
    """For small images on a CPU: patches of 4x4 pixels to 32 features, 2x2 of those to 64, and all of them to `hidden`.

    These are convolutions whose stride is their kernel size, computed as plain matrix products. On CPUs they are
    several times as fast as overlapping convolutions of a similar size.
    """

    PATCH, MERGE = 4, 2

    def __init__(self, leaf_shape: Sequence[int], *, hidden: int = 128) -> None:
        super().__init__()
        step = self.PATCH * self.MERGE
        channels = check_image(leaf_shape, least=step, encoder="patches")
        height, width = leaf_shape[1:]
        if height % step or width % step:
            raise UsageError(f"encoder patches needs images whose sides are multiples of {step}, got {height}x{width}")
        self.rows, self.columns = height // step, width // step
        self.patch = orthogonal(nn.Linear(channels * self.PATCH**2, 32), math.sqrt(2))
        self.merge = orthogonal(nn.Linear(32 * self.MERGE**2, 64), math.sqrt(2))
        self.linear = orthogonal(nn.Linear(64 * self.rows * self.columns, hidden), math.sqrt(2))
        self.out_features = hidden

    def forward(self, obs: Tensor) -> Tensor:
        x = as_float(obs)
        batch, channels = x.shape[:2]
        rows, columns = self.rows * self.MERGE, self.columns * self.MERGE
        x = x.view(batch, channels, rows, self.PATCH, columns, self.PATCH).permute(0, 2, 4, 1, 3, 5)
        x = F.relu(self.patch(x.reshape(batch * rows * columns, -1)))
        x = x.view(batch, self.rows, self.MERGE, self.columns, self.MERGE, -1).transpose(2, 3)
        x = F.relu(self.merge(x.reshape(batch * self.rows * self.columns, -1)))
        return F.relu(self.linear(x.view(batch, -1)))


class ImpalaResNet(nn.Module):
    """The deep network of Espeholt et al., "IMPALA", 2018: three sections, each a convolution, a pool of stride 2 and
    two residual blocks. Any image size is allowed."""

    def __init__(self, leaf_shape: Sequence[int], *, hidden: int = 256) -> None:
        super().__init__()
        channels = check_image(leaf_shape, least=1, encoder="impala")
        sections: list[nn.Module] = []
        for out_channels in (16, 32, 32):
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
    """x + conv(relu(conv(relu(x)))). Nothing follows the sum, so that the identity path stays linear."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


def check_image(leaf_shape: Sequence[int], *, least: int, encoder: str) -> int:
    """The channels of an image leaf [C, H, W] with sides of at least `least` pixels; other leaves are refused."""
    if len(leaf_shape) != 3:
        raise UsageError(
            f"policy.encoder {encoder} needs images [channels, height, width], got a leaf of shape {tuple(leaf_shape)}"
        )
    channels, height, width = leaf_shape
    if min(height, width) < least:
        raise UsageError(
            f"policy.encoder {encoder} needs images of at least {least}x{least} pixels, got {height}x{width}; allowed: "
            "impala, which takes any size"
        )
    return channels


def flat_features(body: nn.Module, leaf_shape: Sequence[int]) -> int:
    """How many features `body` gives for one leaf, found from shapes alone."""
    shadow = copy.deepcopy(body).to("meta")
    return shadow(torch.empty(1, *leaf_shape, device="meta")).numel()


def _least_side(convs: Sequence[Conv]) -> int:
    """The smallest image side that leaves one pixel after all convolutions."""
    side = 1
    for conv in reversed(convs):
        side = (side - 1) * conv.stride + conv.kernel
    return side


def _computes_in_bfloat16(device: torch.device) -> bool:
    return torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.bfloat16
