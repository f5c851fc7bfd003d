"""`SumTree`: samples places in proportion to their priorities, on any device.

Legend: C places, B places of a batch, F children per node.

Each operation handles the whole batch level by level and does not synchronise with the device. Nodes have many
children, so the tree has few levels and an operation launches few kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHILDREN = 32
"""F."""


class SumTree:
    """Priorities of C places. A place of priority 0 is never found."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        sizes = [CHILDREN]
        while sizes[-1] < capacity:
            sizes.append(sizes[-1] * CHILDREN)
        self._levels = [torch.zeros(size // CHILDREN, CHILDREN, dtype=torch.float64, device=device) for size in sizes]
        """[nodes, F] per level, from the root to the priorities themselves: the sum of each child's subtree."""

    @property
    def total(self) -> Tensor:
        """Scalar: the sum of all priorities."""
        return self._levels[0].sum()

    def of(self, places: Tensor) -> Tensor:
        """[B]: the priorities of `places`."""
        return self._levels[-1].view(-1)[places]

    def set(self, places: Tensor, priorities: Tensor) -> None:
        """Set the priorities [B] of `places` [B]. A place that appears twice gets one of its two priorities."""
        self._levels[-1].view(-1)[places] = priorities.to(torch.float64)
        for level in range(len(self._levels) - 1, 0, -1):
            places = places // CHILDREN
            # A node may appear twice: then the same sum is written twice.
            self._levels[level - 1].view(-1)[places] = self._levels[level][places].sum(1)

    def find(self, shares: Tensor) -> Tensor:
        """[B]: the places where the cumulative priority reaches `shares` [B], in [0, 1), of the total."""
        remainder = shares.to(torch.float64) * self.total
        nodes = torch.zeros_like(shares, dtype=torch.int64)
        for level in self._levels:
            children = level[nodes]
            sums = children.cumsum(1)
            # The first child whose cumulative sum exceeds the remainder has a positive priority. Rounding may leave no
            # such child. Then take the last child with a positive priority: the first at which the sums are maximal.
            chosen = (sums <= remainder[:, None]).sum(1)
            chosen = torch.where(chosen < CHILDREN, chosen, sums.argmax(1))
            before = (sums - children).gather(1, chosen[:, None]).squeeze(1)
            remainder = (remainder - before).clamp(min=0.0)  # if negative, a child of priority 0 could be found
            nodes = nodes * CHILDREN + chosen
        return nodes
