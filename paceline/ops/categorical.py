"""Distributions of returns over fixed, evenly spaced atoms (Bellemare et al., 2017; D4PG, appendices A and B).

B rows, K atoms.
"""

from __future__ import annotations

import torch
from torch import Tensor


def atoms(low: float, high: float, count: int, device: torch.device | None = None) -> Tensor:
    """[K]: the returns of the atoms, both bounds included."""
    return torch.linspace(low, high, count, device=device)


def project(values: Tensor, probabilities: Tensor, support: Tensor) -> Tensor:
    """[B, K]: distributions over `values` [B, K], projected onto the atoms of `support` [K].

    The two atoms around a value share its mass in proportion to their distances, which keeps the mean. Mass beyond the
    bounds goes to the outermost atoms. The sum of the mass does not change.
    """
    low, high, count = support[0], support[-1], len(support)
    position = ((values - low) * ((count - 1) / (high - low))).clamp(0, count - 1)
    below = position.floor().clamp(max=count - 2)
    share = position - below
    index = below.long()
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(1, index, probabilities * (1 - share))
    projected.scatter_add_(1, index + 1, probabilities * share)
    return projected


def mean(logits: Tensor, support: Tensor) -> Tensor:
    """[B]: the expected return."""
    return (logits.softmax(-1) * support).sum(-1)


def cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """[B]: the critic's loss, of predicted distributions `logits` [B, K] against `target` [B, K]."""
    return -(target * logits.log_softmax(-1)).sum(-1)
