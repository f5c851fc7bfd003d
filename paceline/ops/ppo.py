"""PPO's losses (Schulman et al., 2017), row by row. B rows; nothing is averaged here."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """[B]: the negated objective of DD-PPO's equation 2, -min(r A, clip(r, low, high) A)."""
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)


def policy_gradient(log_ratio: Tensor, advantage: Tensor, max_rho: float) -> Tensor:
    """[B]: what IMPALA minimises, -min(max_rho, r) A log pi, with a weight that no gradient flows through."""
    weight = log_ratio.detach().exp().clamp(max=max_rho)
    return -weight * advantage * log_ratio


def value_loss(value: Tensor, old_value: Tensor, target: Tensor, clip: float | None) -> Tensor:
    """[B]: half the squared error; with `clip` the larger of it and of the error after at most a step of `clip`."""
    error = (value - target).square()
    if clip is not None:
        clipped = old_value + (value - old_value).clamp(-clip, clip)
        error = torch.maximum(error, (clipped - target).square())
    return 0.5 * error


def approximate_kl(log_ratio: Tensor) -> Tensor:
    """[B]: an unbiased, non-negative estimate of KL(old || new), (r - 1) - log r."""
    return log_ratio.exp() - 1 - log_ratio
