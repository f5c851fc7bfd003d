"""The soft indicator of D4PG's rewards (equation 15)."""

from __future__ import annotations

import math

STEEPNESS = math.atanh(math.sqrt(0.95))


def soft_indicator(error: float, tolerance: float, margin: float) -> float:
    """1 where |error| is at most `tolerance`; 0.05 where it is `margin` more than that, and falling towards 0."""
    beyond = abs(error) - tolerance
    if beyond <= 0.0:
        return 1.0
    return 1.0 - math.tanh(STEEPNESS * beyond / margin) ** 2
