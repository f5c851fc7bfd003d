"""The residual encoders of DD-PPO (Wijmans et al., 2020, appendix C) and of VER (Wijmans et al., 2022, section 4).

Legend: B rows, C channels, H x W pixels.

DD-PPO: a 2x2 average pool halves the resolution. A residual network of half the usual width divides it by 32 more, with
GroupNorm for every BatchNorm, because rows of one rollout are too much alike for batch statistics. A 3x3 convolution
compresses the result to about 2,048 numbers, whatever the image size. One fully connected layer gives the features.
In the SE-ResNeXts every 3x3 convolution is grouped, as in Xie et al. (2017). The code published with DD-PPO groups only
the first block of each stage, which gives a larger network than the paper names.

VER: ResNet18 at half width with GroupNorm, and four changes from ConvNeXt (Liu et al., 2022):

- The stem cuts the image into patches: a 4x4 convolution of stride 4, instead of a 7x7 one and a pool.
- Separate layers halve the resolution between stages, so that every block's shortcut is the identity.
- Layer scale: every block's branch is multiplied by a learned number per channel, small at first.
- Dilated convolutions see as far as larger kernels, at the price of 3x3 ones.

VER's paper gives no sizes. Here the second convolution of a block is dilated by 2: a block sees 7x7 pixels, as far as a
ConvNeXt kernel, and skips none. Layer scale starts at 0.1, as in Touvron et al. (2021) for up to 18 layers. There is no
pool before the stem: the paper's 128x128 images end as 4x4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UsageError
from paceline.nets.encoders import check_image
from paceline.nets.layers import as_float

LEAST_SIDE = 32
"""Below this the last stages would see one pixel and padding."""
COMPRESSED_FEATURES = 2048
"""About how many numbers the compression leaves."""
EXCITE_REDUCTION = 16
"""The squeeze-and-excite bottleneck of Hu et al. (2018)."""
PATCH, DEPTHS, DILATION, INITIAL_SCALE = 4, (2, 2, 2, 2), 2, 0.1
"""Of VER's encoder: see above."""
STRIDE = PATCH * 2 ** (len(DEPTHS) - 1)


@dataclass(frozen=True)
class Architecture:
    """The shape of a residual network, in units of its base planes."""

    depths: tuple[int, int, int, int]
    """Blocks per stage; each stage after the first halves the resolution and doubles the planes."""
    bottleneck: bool
    """Blocks of 1x1, 3x3, 1x1 convolutions instead of two 3x3."""
    resnext: bool = False
    """Twice the inner planes, in groups of 4 at any width, and squeeze-and-excite."""

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
        name: str = "resnet50",
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
        channels, planes = base_planes, base_planes * (2 if shape.resnext else 1)
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
    """A 3x3 convolution that leaves about `COMPRESSED_FEATURES` of `area` pixels, and how many it leaves."""
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


class VERResNetEncoder(nn.Module):
    """[B, C, H, W] images of at least 32x32 pixels to [B, hidden].

    Images whose sides are not multiples of 32 are padded with zeros on the right and below: every pixel is seen.
    """

    def __init__(
        self, leaf_shape: Sequence[int], *, hidden: int = 512, base_planes: int = 32, num_groups: int = 16
    ) -> None:
        super().__init__()
        if base_planes % num_groups:
            raise UsageError(
                f"base planes must be a multiple of the {num_groups} groups of GroupNorm, got {base_planes}"
            )
        in_channels = check_image(leaf_shape, least=STRIDE, encoder="ver_resnet18")
        height, width = leaf_shape[1:]
        self._missing = (0, -width % STRIDE, 0, -height % STRIDE)
        layers: list[nn.Module] = [
            nn.Conv2d(in_channels, base_planes, PATCH, stride=PATCH, bias=False),
            nn.GroupNorm(num_groups, base_planes),
        ]
        planes = base_planes
        for stage, depth in enumerate(DEPTHS):
            if stage:
                layers.append(_halve(planes, num_groups))
                planes *= 2
            layers += [ScaledBlock(planes, num_groups) for _ in range(depth)]
        self.trunk = nn.Sequential(*layers)
        area = math.prod(-(-side // STRIDE) for side in (height, width))
        self.compress, num_compressed = compression(planes, area)
        self.linear = nn.Linear(num_compressed, hidden)
        self.out_features = hidden
        self.apply(initialise)

    def forward(self, obs: Tensor) -> Tensor:
        images = as_float(obs)
        if any(self._missing):
            images = F.pad(images, self._missing)
        return F.relu(self.linear(self.compress(self.trunk(images)).flatten(1)))


def _halve(planes: int, num_groups: int) -> nn.Module:
    """Half the resolution and twice the planes."""
    return nn.Sequential(nn.GroupNorm(num_groups, planes), nn.Conv2d(planes, 2 * planes, 2, stride=2))


class ScaledBlock(nn.Module):
    """relu(x + scale * branch(x)): ResNet18's two 3x3 convolutions, the second dilated."""

    def __init__(self, planes: int, num_groups: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(planes, planes, 3, padding=1, bias=False),
            nn.GroupNorm(num_groups, planes),
            nn.ReLU(inplace=True),
            nn.Conv2d(planes, planes, 3, padding=DILATION, dilation=DILATION, bias=False),
            nn.GroupNorm(num_groups, planes),
        )
        self.scale = nn.Parameter(torch.full((planes, 1, 1), INITIAL_SCALE))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.scale * self.branch(x), inplace=True)
