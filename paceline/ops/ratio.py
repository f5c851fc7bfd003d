"""Probability ratios of two policies, finite in value and gradient for every log-ratio.

exp overflows float32 above 88. A ratio of infinity turns a gradient that should be 0 into 0 * inf = NaN.
"""

from __future__ import annotations

from torch import Tensor

LARGEST = 20.0
"""Within +-LARGEST ratios are exact. Beyond it an action has become almost certain or impossible: exp(20) is 5 *
10^8."""
TANGENT = 1e6
"""The length of the tangent above LARGEST. Beyond it ratios are constant."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio), continued above LARGEST by its tangent.

    The tangent has a gradient: where PPO does not clip (a negative advantage), it still lowers the ratio.
    """
    return log_ratio.clamp(max=LARGEST).exp() * (1 + (log_ratio - LARGEST).clamp(0.0, TANGENT))


def bounded(log_ratio: Tensor) -> Tensor:
    """`log_ratio` between -LARGEST and the end of the tangent."""
    return log_ratio.clamp(-LARGEST, LARGEST + TANGENT)
