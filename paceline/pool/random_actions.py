"""Random actions for measuring simulators, the same for every system under test."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from paceline.pool.protocol import PoolSpec

TURNS = 64
"""Number of different actions per slot, used in rotation. The cost of a step may depend on its action."""


def sample_turns(space: spaces.Space, num_slots: int, seed: int = 0) -> list[np.ndarray]:
    """`TURNS` arrays of one random action per slot."""
    space.seed(seed)
    return [np.stack([space.sample() for _ in range(num_slots)]) for _ in range(TURNS)]


class RandomActions:
    """Random actions for the slots of a pool."""

    def __init__(self, spec: PoolSpec) -> None:
        self._turns = {leaf.name: sample_turns(leaf.space, spec.num_slots) for leaf in spec.actions}
        self._turn = 0

    def next(self, slots: np.ndarray) -> dict[str, np.ndarray]:
        """The next actions of `slots`, by leaf name."""
        self._turn = (self._turn + 1) % TURNS
        return {name: turns[self._turn][slots] for name, turns in self._turns.items()}
