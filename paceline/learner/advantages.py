"""Mean and deviation of the advantages of all ranks, for normalisation.

M rows of one rank. Nothing here waits for a device, so that a mini-batch with it can be recorded.

The variance is taken in a second pass, about the mean: E[x^2] - E[x]^2 in float32 loses every digit once the mean is a few
thousand deviations. Both passes are in float64. float32 cannot even hold the mean well enough: half a unit in the last place of
10^4 is a twentieth of a deviation of 0.01.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.distributed.runtime import Group

LEAST_DEVIATION = 1e-8
"""Advantages that vary by less are not scaled up any further."""
ROUNDING = 4 * torch.finfo(torch.float32).eps
"""Relative to the mean: advantages that vary by less differ only by how float32 rounds them. They are not scaled up to 1."""


class Moments(NamedTuple):
    """Of the valid rows of all ranks, each row weighing the same."""

    mean: Tensor
    """[] float64."""
    deviation: Tensor
    """[] float64: at least what is above rounding; 1 without a single valid row."""

    def normalized(self, advantage: Tensor) -> Tensor:
        """`advantage` with mean 0 and deviation 1, in its own precision."""
        return ((advantage.double() - self.mean) / self.deviation).to(advantage.dtype)


def moments(advantage: Tensor, valid: Tensor, group: Group) -> Moments:
    """Of `advantage` [M] where `valid` [M]; elsewhere it may hold anything. Called by all ranks together."""
    # Sums over masked rows: to select them would have to wait for their number.
    values = torch.where(valid, advantage, 0.0).double()
    count, total = group.sum_(torch.stack([valid.sum().double(), values.sum()])).unbind()
    mean = total / count.clamp(min=1.0)
    squares = group.sum_(torch.where(valid, values - mean, 0.0).square().sum())
    deviation = (squares / count.clamp(min=1.0)).sqrt()
    least = (ROUNDING * mean.abs()).clamp(min=LEAST_DEVIATION)
    # Without a valid row there is nothing to normalise by; stale rows may be trained on all the same.
    return Moments(mean, torch.where(count > 0, torch.maximum(deviation, least), 1.0))
