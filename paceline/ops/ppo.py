"""PPO's losses (Schulman et al., 2017), row by row. B rows.

Values and gradients are finite for every log-ratio, also for the -inf of an action that has become impossible. Within
+-20 they are the paper's.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.ops.ratio import bounded, ratio_of


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """[B]: the negated objective of DD-PPO's equation 2, -min(r A, clip(r, low, high) A)."""
    ratio = ratio_of(log_ratio)
    return -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)  # type: ignore[arg-type]


def policy_gradient(log_ratio: Tensor, advantage: Tensor, max_rho: float | Tensor) -> Tensor:
    """[B]: IMPALA's loss, -min(max_rho, r) A log pi. No gradient flows through the weight."""
    weight = ratio_of(log_ratio.detach()).clamp(max=max_rho)
    return -weight * advantage * bounded(log_ratio)


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """[B]: half the squared error. With `clip`, the maximum of that and of the error after a change of at most
    `clip`."""
    error = (value - target).square()
    if clip is not None:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    return 0.5 * error


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """[B]: (r - 1) - log r, an unbiased estimate of KL(old || new) that is never negative."""
    return ratio_of(log_ratio) - 1 - bounded(log_ratio)
