"""Normalised advantages.

M rows of one rank. Nothing here waits for the device, so a mini-batch with it can be recorded.

The variance takes a second pass, about the mean: E[x^2] - E[x]^2 loses every digit where the mean is much larger than
the deviation. Both passes are in float64, because float32 cannot hold such a mean exactly enough.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.distributed.runtime import Group

LEAST_DEVIATION = 1e-8
"""A smaller deviation counts as this one."""
ROUNDING = 4 * torch.finfo(torch.float32).eps
"""Relative to the mean: a smaller deviation is only float32 rounding, which must not be scaled up to 1."""


def normalize(advantage: Tensor, valid: Tensor, group: Group) -> Tensor:
    """`advantage` [M] with mean 0 and deviation 1 over the `valid` [M] rows of all ranks, each row weighing the same.
    All ranks call this together."""
    # Sums over masked rows: selecting rows would wait for their number.
    values = torch.where(valid, advantage, 0.0).double()
    count, total = group.sum_(torch.stack([valid.sum().double(), values.sum()])).unbind()
    mean = total / count.clamp(min=1.0)
    squares = group.sum_(torch.where(valid, values - mean, 0.0).square().sum())
    least = (ROUNDING * mean.abs()).clamp(min=LEAST_DEVIATION)
    deviation = torch.maximum((squares / count.clamp(min=1.0)).sqrt(), least)
    # Without a valid row there may still be stale rows to train on.
    deviation = torch.where(count > 0, deviation, 1.0)
    return ((advantage.double() - mean) / deviation).to(advantage.dtype)
