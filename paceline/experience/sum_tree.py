"""Drawing in proportion to priorities: a tree of their sums, on any device.

Legend: C places, B places of a batch, F children of a node.

Every operation goes through the tree level by level, for all places of a batch at once; nothing waits for the device. Nodes have
many children, so that there are few levels: four for a million places, of a few operations each.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHILDREN = 32
"""F."""


class SumTree:
    """Priorities of C places; 0 is never drawn."""

    def __init__(self, capacity: int, device: torch.device) -> None:
        sizes = [CHILDREN]
        while sizes[-1] < capacity:
            sizes.append(sizes[-1] * CHILDREN)
        self._levels = [torch.zeros(size // CHILDREN, CHILDREN, dtype=torch.float64, device=device) for size in sizes]
        """[nodes, F]: sums of each node's children, from the root's to the places themselves."""

    @property
    def total(self) -> Tensor:
        """[]: the sum of all priorities."""
        return self._levels[0].sum()

    def of(self, places: Tensor) -> Tensor:
        """[B]: priorities."""
        return self._levels[-1].view(-1)[places]

    def set(self, places: Tensor, priorities: Tensor) -> None:
        """Give `places` [B] new priorities [B]. One that is named twice gets one of the two."""
        self._levels[-1].view(-1)[places] = priorities.to(torch.float64)
        for level in range(len(self._levels) - 1, 0, -1):
            places = places // CHILDREN
            # Nodes that are there twice get the same sum twice.
            self._levels[level - 1].view(-1)[places] = self._levels[level][places].sum(1)

    def find(self, shares: Tensor) -> Tensor:
        """[B]: the places at `shares` [B] of the total, each in [0, 1)."""
        left = shares.to(torch.float64) * self.total
        nodes = torch.zeros_like(shares, dtype=torch.int64)
        for level in self._levels:
            children = level[nodes]
            sums = children.cumsum(1)
            # The first child whose sum is above what is left has a share of its own. Rounding may leave none: then the
            # last one that has any, at which the sums reach their maximum for the first time.
            chosen = (sums <= left[:, None]).sum(1)
            chosen = torch.where(chosen < CHILDREN, chosen, sums.argmax(1))
            before = (sums - children).gather(1, chosen[:, None]).squeeze(1)
            left = (left - before).clamp(min=0.0)  # below 0 a child without a share would be the first
            nodes = nodes * CHILDREN + chosen
        return nodes
