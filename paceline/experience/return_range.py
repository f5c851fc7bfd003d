"""The range of discounted returns that a task has shown so far: what a categorical critic must be able to speak of."""

from __future__ import annotations

import numpy as np


class ReturnRange:
    """Of whole episodes, from their first step on: exact, though later states may be worth more. N slots."""

    def __init__(self, num_slots: int, discount: float) -> None:
        self.discount = discount
        self._return, self._worth = np.zeros(num_slots), np.ones(num_slots)
        self.low, self.high = float("inf"), -float("inf")

    def observe(self, slots: np.ndarray, reward: np.ndarray, ended: np.ndarray, lost: np.ndarray) -> None:
        """Rewards of B slots, of which `ended` ones finished an episode and `lost` ones never will."""
        self._return[slots] += self._worth[slots] * np.where(lost, 0.0, reward)
        self._worth[slots] *= self.discount
        if ended.any():
            returns = self._return[slots[ended]]
            self.low, self.high = min(self.low, float(returns.min())), max(self.high, float(returns.max()))
        over = slots[ended | lost]
        self._return[over], self._worth[over] = 0.0, 1.0

    def exceeds(self, low: float, high: float) -> bool:
        """Whether a return was seen outside of [low, high]."""
        return self.low < low or self.high > high
