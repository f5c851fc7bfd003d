"""`LastLayer`: the layer that gives values, or the parameters of actions."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LastLayer(nn.Linear):
    """A linear layer that computes in the precision of its weights, float32, whatever that of the layers before it.

    bfloat16 has eight bits: a value near 100 would come in steps of 0.5, and the rewards it is to tell apart may be 0.01.
    """

    def forward(self, features: Tensor) -> Tensor:
        """[B, F] in any precision to [B, O] in that of the weights."""
        device = features.device.type
        if not torch.is_autocast_enabled(device):  # to switch it off takes 17 us, as long as the layer itself
            return super().forward(features.to(self.weight.dtype))
        with torch.autocast(device, enabled=False):
            return super().forward(features.to(self.weight.dtype))
