"""Memory and mini-batches that a configuration asks for, known as soon as the spaces are."""

from __future__ import annotations

import math
from collections.abc import Iterable

from paceline.errors import UsageError
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf

ROW_BYTES = 64
"""Bytes of a row other than observation, action and recurrent state: rewards, values, flags."""


def require_rows(minibatches: int, rows: int) -> None:
    """Refuse more mini-batches than an update has rows."""
    if minibatches > rows:
        raise UsageError(
            f"ppo.minibatches is {minibatches}, but an update has {rows} rows; allowed: at most {rows}, or more "
            "--rollout-steps or --pool.num-envs"
        )


def row_bytes(spec: PoolSpec, state_size: int) -> int:
    """Bytes of a row of a rollout buffer."""
    return leaf_bytes(spec.obs) + leaf_bytes(spec.actions) + 4 * state_size + ROW_BYTES


def transition_bytes(spec: PoolSpec) -> int:
    """Bytes of a transition in the replay: two observations, an action, a reward, a discount and a number."""
    return 2 * leaf_bytes(spec.obs) + leaf_bytes(spec.actions) + 16


def leaf_bytes(leaves: Iterable[Leaf]) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
