"""Random actions for measuring simulators."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline.pool.protocol import PoolSpec


def random_actions(spec: PoolSpec, seed: int = 0) -> Mapping[str, np.ndarray]:
    """One random action for every slot, by leaf; index with slots."""
    actions = {}
    for leaf in spec.actions:
        leaf.space.seed(seed)
        actions[leaf.name] = np.stack([leaf.space.sample() for _ in range(spec.num_slots)])
    return actions
