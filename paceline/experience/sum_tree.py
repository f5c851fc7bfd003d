"""Drawing in proportion to priorities: a binary tree of their sums, on any device.

C places, B places of a batch. Every operation goes through the tree level by level, for all places of a batch at once; nothing
waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor


class SumTree:
    """Priorities of C places; 0 is never drawn."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._levels = max(1, (capacity - 1).bit_length())
        self._first = 1 << self._levels
        """Node of place 0. Node k has the children 2k and 2k + 1; the root is 1."""
        self._nodes = torch.zeros(2 * self._first, dtype=torch.float64, device=device)

    @property
    def total(self) -> Tensor:
        """[]: the sum of all priorities."""
        return self._nodes[1]

    def of(self, places: Tensor) -> Tensor:
        """[B]: priorities."""
        return self._nodes[places + self._first]

    def set(self, places: Tensor, priorities: Tensor) -> None:
        """Give `places` [B] new priorities [B]. One that is named twice gets one of the two."""
        nodes = places + self._first
        self._nodes[nodes] = priorities.to(torch.float64)
        for _ in range(self._levels):
            nodes = nodes >> 1
            # Nodes that are there twice get the same sum twice.
            self._nodes[nodes] = self._nodes[2 * nodes] + self._nodes[2 * nodes + 1]

    def find(self, shares: Tensor) -> Tensor:
        """[B]: the places at `shares` [B] of the total, each in [0, 1)."""
        left = shares.to(torch.float64) * self.total
        nodes = torch.ones_like(shares, dtype=torch.int64)
        for _ in range(self._levels):
            nodes = 2 * nodes
            below = self._nodes[nodes]
            # Rounding must not lead to a place that has nothing: go right only where there is something.
            right = (left >= below) & (self._nodes[nodes + 1] > 0)
            left = torch.where(right, left - below, left)
            nodes = nodes + right.long()
        return nodes - self._first
