"""The range of discounted returns seen so far. The atoms of a categorical critic should cover it."""

from __future__ import annotations

import numpy as np


class ReturnRange:
    """Returns of whole episodes of N slots, from the first step. Later states of an episode may exceed the range."""

    def __init__(self, num_slots: int, discount: float) -> None:
        self.discount = discount
        self._return, self._next_discount = np.zeros(num_slots), np.ones(num_slots)
        self.low, self.high = float("inf"), -float("inf")

    def observe(self, slots: np.ndarray, reward: np.ndarray, ended: np.ndarray, lost: np.ndarray) -> None:
        """Add the rewards of B slots. `ended` episodes count; episodes of `lost` simulators are dropped."""
        self._return[slots] += self._next_discount[slots] * np.where(lost, 0.0, reward)
        self._next_discount[slots] *= self.discount
        if ended.any():
            returns = self._return[slots[ended]]
            self.low, self.high = min(self.low, float(returns.min())), max(self.high, float(returns.max()))
        restarted = slots[ended | lost]
        self._return[restarted], self._next_discount[restarted] = 0.0, 1.0

    def exceeds(self, low: float, high: float) -> bool:
        """Whether a return outside [low, high] was seen."""
        return self.low < low or self.high > high
