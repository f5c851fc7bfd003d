"""`ControlEncoder`: the observations of D4PG's networks as one feature vector.

Legend: B rows, F features.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from paceline.nets.config import PolicyConfig
from paceline.nets.images import is_channels_last, is_image
from paceline.nets.trunk import Trunk, channels_first
from paceline.pool.spaces import Leaf

Seen = dict[str, Tensor] | Tensor
"""Observations by name, or features [B, F] that an encoder has made of them."""


class ControlEncoder(nn.Module):
    """Every image goes through an encoder of its own, and every reduced observation through layers of its own.
    Everything else follows as it is.

    Layers compute in `precision`. The features are float32.
    """

    precision = torch.float32

    def __init__(self, leaves: tuple[Leaf, ...], config: PolicyConfig) -> None:
        super().__init__()
        self.images = {leaf.name: is_channels_last(leaf) for leaf in leaves if is_image(leaf)}
        """The observations that are images, and whether their channels are last."""
        self.trunk = Trunk(leaves, dataclasses.replace(config, hidden=(), embedding=0))
        self.out_features = self.trunk.out_features

    def forward(self, seen: Seen) -> Tensor:
        """[B, F]. Features stay as they are."""
        if isinstance(seen, Tensor):
            return seen
        seen = channels_first(seen, [name for name, is_last in self.images.items() if is_last])
        if self.precision == torch.float32:
            return self.trunk(seen)
        # Casts are not cached: a recorded graph would keep a cast of old weights.
        with torch.autocast(next(iter(seen.values())).device.type, self.precision, cache_enabled=False):
            return self.trunk(seen).float()
