"""What a configuration asks of memory and of mini-batches, known as soon as the spaces are."""

from __future__ import annotations

import math
from collections.abc import Iterable

from paceline.config import Config
from paceline.errors import UsageError
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf

ROW_BYTES = 64
"""Bytes of a row other than observation, action and recurrent state: rewards, values, flags."""


def require_rows(config: Config, spec: PoolSpec) -> None:
    """Refuse more mini-batches than an update has rows."""
    rows = update_rows(config, spec)
    if config.ppo.minibatches > rows:
        raise UsageError(
            f"ppo.minibatches is {config.ppo.minibatches}, but an update has {rows} rows; allowed: at most {rows}, or more "
            "--rollout-steps or --pool.num-envs"
        )


def update_rows(config: Config, spec: PoolSpec) -> int:
    """Rows of an update of the PPO systems."""
    whole = config.rollout_steps * spec.num_slots
    if config.system != "appo" or config.appo.batch is None:
        return whole
    return max(1, round(config.appo.batch / config.rollout_steps)) * config.rollout_steps


def rollout_bytes(config: Config, spec: PoolSpec, state_size: int) -> int:
    """Of the table that rollouts are collected in. `appo` and overlapping `ver` have room for three."""
    row = leaf_bytes(spec.obs) + leaf_bytes(spec.actions) + 4 * state_size + ROW_BYTES
    rollouts = 3 if config.system == "appo" or (config.system == "ver" and config.ver.overlap) else 1
    return rollouts * config.rollout_steps * spec.num_slots * row


def transition_bytes(spec: PoolSpec) -> int:
    """Of a transition in the replay: two observations, an action, a reward, a discount and a number."""
    return 2 * leaf_bytes(spec.obs) + leaf_bytes(spec.actions) + 16


def leaf_bytes(leaves: Iterable[Leaf]) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
