"""The residual encoder of VER (Wijmans et al., 2022, section 4): ResNet18 at half width with GroupNorm, and four changes
taken from ConvNeXt (Liu et al., 2022).

Legend: B rows, C channels, H x W pixels.

- The stem cuts the image into patches: a 4x4 convolution of stride 4, instead of a 7x7 one and a pool.
- Layers of their own halve the resolution between stages, so that every block's shortcut is the identity.
- Layer scale: every block's branch is multiplied by a learned number per channel, small at first.
- Dilated convolutions: they see as far as larger kernels, at the price of 3x3 ones.

The paper names these and gives no sizes. Here the second convolution of a block is dilated by 2, so that a block sees
7x7 pixels, as far as the kernels of a ConvNeXt, and no pixel in between is skipped; layer scale starts at 0.1, which
Touvron et al. (2021) use up to 18 layers. There is no pool before the stem: 128x128 images, the paper's, end as 4x4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.errors import UsageError
from paceline.nets.encoders import as_float, check_image
from paceline.nets.resnet import compression, initialise

PATCH = 4
DEPTHS = (2, 2, 2, 2)
DILATION = 2
INITIAL_SCALE = 0.1
STRIDE = PATCH * 2 ** (len(DEPTHS) - 1)


class VERResNetEncoder(nn.Module):
    """[B, C, H, W] images of at least 32x32 pixels to [B, hidden].

    Images whose sides are no multiples of 32 are filled up with zeros on the right and below: every pixel is seen.
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
    """Half the resolution and twice the planes, as between the stages of a ConvNeXt."""
    return nn.Sequential(nn.GroupNorm(num_groups, planes), nn.Conv2d(planes, 2 * planes, 2, stride=2))


class ScaledBlock(nn.Module):
    """relu(x + scale * branch(x)): ResNet18's two 3x3 convolutions, the second one dilated."""

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
