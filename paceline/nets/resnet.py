"""The residual encoders of DD-PPO (Wijmans et al., 2020, appendix C).

Legend: B rows, C channels, H x W pixels.

A 2x2 average pool halves the resolution; a residual network of half the usual width, with GroupNorm for every BatchNorm
(rows of one rollout are too much alike for batch statistics), divides it by 32 more; a 3x3 convolution compresses the
result so that about 2,048 numbers remain, whatever the image size (128x4x4 for 256x256 images); one fully connected
layer gives the features.

In the SE-ResNeXts every 3x3 convolution is grouped, as in Xie et al. (2017). The code published with DD-PPO groups only
the first block of each stage, which gives a larger network than the paper names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UsageError
from paceline.nets.encoders import as_float, check_image

ResNetName = Literal["resnet18", "resnet50", "se_resnext50", "se_resnext101"]

LEAST_SIDE = 32
"""Below this the last stages would see nothing but padding around a single pixel."""
COMPRESSED_FEATURES = 2048
"""What the compression leaves, about."""
EXCITE_REDUCTION = 16
"""The squeeze-and-excite bottleneck of Hu et al. (2018)."""


@dataclass(frozen=True)
class Architecture:
    """The shape of one residual network, in units of its base planes."""

    depths: tuple[int, int, int, int]
    """Blocks per stage; each stage after the first halves the resolution and doubles the planes."""
    bottleneck: bool
    """Blocks of 1x1, 3x3, 1x1 convolutions instead of two 3x3."""
    resnext: bool = False
    """Twice the inner planes, in groups of 4 at any width, and squeeze-and-excite."""

    @property
    def inner_multiplier(self) -> int:
        return 2 if self.resnext else 1

    @property
    def expansion(self) -> int:
        """A block's output channels over its inner planes."""
        if not self.bottleneck:
            return 1
        return 2 if self.resnext else 4


ARCHITECTURES: dict[str, Architecture] = {
    "resnet18": Architecture((2, 2, 2, 2), bottleneck=False),
    "resnet50": Architecture((3, 4, 6, 3), bottleneck=True),
    "se_resnext50": Architecture((3, 4, 6, 3), bottleneck=True, resnext=True),
    "se_resnext101": Architecture((3, 4, 23, 3), bottleneck=True, resnext=True),
}


class ResNetEncoder(nn.Module):
    """[B, C, H, W] images of at least 32x32 pixels to [B, hidden]."""

    def __init__(
        self,
        leaf_shape: Sequence[int],
        name: ResNetName = "resnet50",
        *,
        hidden: int = 512,
        base_planes: int = 32,
        num_groups: int = 16,
    ) -> None:
        super().__init__()
        if name not in ARCHITECTURES:
            raise UsageError(f"the encoder {name!r} does not exist; allowed: {', '.join(ARCHITECTURES)}")
        in_channels = check_image(leaf_shape, least=LEAST_SIDE, encoder=name)
        self.pool = nn.AvgPool2d(2)
        self.trunk = ResNet(in_channels, ARCHITECTURES[name], base_planes=base_planes, num_groups=num_groups)
        area = math.prod(-(-(side // 2) // ResNet.stride) for side in leaf_shape[1:])
        self.compress, num_compressed = compression(self.trunk.out_channels, area)
        self.linear = nn.Linear(num_compressed, hidden)
        self.out_features = hidden
        self.apply(initialise)

    def forward(self, obs: Tensor) -> Tensor:
        features = self.compress(self.trunk(self.pool(as_float(obs))))
        return F.relu(self.linear(features.flatten(1)))


class ResNet(nn.Module):
    """[B, C, H, W] to [B, out_channels, ceil(H / 32), ceil(W / 32)]."""

    stride = 32

    def __init__(self, in_channels: int, shape: Architecture, *, base_planes: int, num_groups: int) -> None:
        super().__init__()
        if base_planes % num_groups or base_planes % 2:
            raise UsageError(
                f"base planes must be even and a multiple of the {num_groups} groups of GroupNorm, got {base_planes}"
            )
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, base_planes, 7, stride=2, padding=3, bias=False),
            nn.GroupNorm(num_groups, base_planes),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        cardinality = base_planes // 2 if shape.resnext else 1
        blocks: list[nn.Module] = []
        channels, planes = base_planes, base_planes * shape.inner_multiplier
        for stage, depth in enumerate(shape.depths):
            for index in range(depth):
                stride = 2 if stage and index == 0 else 1
                blocks.append(_block(shape, channels, planes, stride, cardinality, num_groups))
                channels = planes * shape.expansion
            planes *= 2
        self.blocks = nn.Sequential(*blocks)
        self.out_channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.stem(x))


def _block(
    shape: Architecture, in_channels: int, planes: int, stride: int, cardinality: int, num_groups: int
) -> nn.Module:
    out_channels = planes * shape.expansion

    def conv(source: int, target: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(source, target, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
        return [layer, nn.GroupNorm(num_groups, target)]

    if shape.bottleneck:
        branch = [
            *conv(in_channels, planes, 1),
            nn.ReLU(inplace=True),
            *conv(planes, planes, 3, stride, cardinality),
            nn.ReLU(inplace=True),
            *conv(planes, out_channels, 1),
        ]
    else:
        branch = [*conv(in_channels, planes, 3, stride), nn.ReLU(inplace=True), *conv(planes, out_channels, 3)]
    if shape.resnext:
        branch.append(SqueezeExcite(out_channels))
    same = stride == 1 and in_channels == out_channels
    shortcut = nn.Identity() if same else nn.Sequential(*conv(in_channels, out_channels, 1, stride))
    return Residual(nn.Sequential(*branch), shortcut)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x) + self.shortcut(x), inplace=True)


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate in (0, 1) computed from the means of all channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = channels // EXCITE_REDUCTION
        self.squeeze = nn.Linear(channels, squeezed)
        self.excite = nn.Linear(squeezed, channels)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.excite(F.relu(self.squeeze(x.mean((2, 3))))).sigmoid()
        return x * gates[:, :, None, None]


def compression(channels: int, area: int) -> tuple[nn.Module, int]:
    """A 3x3 convolution after which about `COMPRESSED_FEATURES` are left of `area` pixels, and how many they are."""
    compressed = max(1, round(COMPRESSED_FEATURES / area))
    layers = nn.Sequential(
        nn.Conv2d(channels, compressed, 3, padding=1, bias=False),
        nn.GroupNorm(1, compressed),
        nn.ReLU(inplace=True),
    )
    return layers, compressed * area


def initialise(layer: nn.Module) -> None:
    if isinstance(layer, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
