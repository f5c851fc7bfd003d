"""Probability ratios of two policies, finite in value and gradient for every log-ratio, infinite ones too.

exp overflows float32 above 88, and a ratio of infinity turns a gradient that should be 0 into 0 * inf = NaN. Within +-LARGEST
everything is as the papers have it.
"""

from __future__ import annotations

from torch import Tensor

LARGEST = 20.0
"""Log-ratios beyond this, either way, say that an action has become all but certain or impossible: exp(20) is 5 * 10^8."""
TANGENT = 1e6
"""How far above LARGEST the tangent goes; from there on ratios are constant."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """exp(log_ratio); above LARGEST its tangent there.

    A tangent, not a constant: where PPO's objective is not clipped (a negative advantage), the gradient still lowers the ratio.
    """
    return log_ratio.clamp(max=LARGEST).exp() * (1 + (log_ratio - LARGEST).clamp(0.0, TANGENT))


def bounded(log_ratio: Tensor) -> Tensor:
    """`log_ratio` from -LARGEST to the end of the tangent. An action that is impossible now has one of -inf."""
    return log_ratio.clamp(-LARGEST, LARGEST + TANGENT)
