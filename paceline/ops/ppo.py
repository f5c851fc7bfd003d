"""PPO's losses (Schulman et al., 2017), row by row. B rows; nothing is averaged here.

Values and gradients are finite for every log-ratio, also for the -inf of an action that is impossible now. They are the papers' for
log-ratios within +-20; `ratio_of` says what they are beyond.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.ops.ratio import bounded, ratio_of


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """[B]: the negated objective of DD-PPO's equation 2, -min(r A, clip(r, low, high) A)."""
    ratio = ratio_of(log_ratio)
    return -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)


def policy_gradient(log_ratio: Tensor, advantage: Tensor, max_rho: float) -> Tensor:
    """[B]: what IMPALA minimises, -min(max_rho, r) A log pi, with a weight that no gradient flows through."""
    weight = ratio_of(log_ratio.detach()).clamp(max=max_rho)
    return -weight * advantage * bounded(log_ratio)


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """[B]: half the squared error; with `clip` the larger of it and of the error after at most a step of `clip`."""
    error = (value - target).square()
    if clip is not None:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    return 0.5 * error


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """[B]: an unbiased, non-negative estimate of KL(old || new), (r - 1) - log r."""
    return ratio_of(log_ratio) - 1 - bounded(log_ratio)
