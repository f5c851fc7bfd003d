"""Random actions for measuring simulators, the same for every system under test."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.pool.kinds import AgentKind
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import MASK, leaves

TURNS = 64
"""Number of different actions per slot, used in rotation. The cost of a step may depend on its action."""
WIDE = 1000.0
"""Where bounds are wider apart, numbers are drawn around 0, as by a new policy. Simulators may diverge at others."""


def sample_turns(space: spaces.Space, num_slots: int, seed: int = 0) -> list[np.ndarray]:
    """`TURNS` arrays of one random action per slot."""
    space.seed(seed)
    turns = [np.stack([space.sample() for _ in range(num_slots)]) for _ in range(TURNS)]
    if not isinstance(space, spaces.Box) or not space.is_bounded():
        return turns
    wide = space.high.astype(float) - space.low.astype(float) > WIDE
    if not wide.any():
        return turns
    random = np.random.default_rng(seed)
    near = [random.normal(size=turn.shape).clip(space.low, space.high).astype(turn.dtype) for turn in turns]
    return [np.where(wide, *both) for both in zip(near, turns, strict=True)]


class RandomActions:
    """Random actions for the slots of a pool."""

    def __init__(self, spec: PoolSpec) -> None:
        self._turns = {leaf.name: sample_turns(leaf.space, spec.num_slots) for leaf in spec.actions}
        self._turn = 0
        self._agents = spec.agents_per_env
        self._masked = [_Masked(kind) for kind in spec.kinds if MASK in kind.obs_columns]
        self._random = np.random.default_rng(0)

    def next(self, slots: np.ndarray, obs: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """The next actions of `slots`, by leaf name; where `obs` has masks of actions, only allowed ones."""
        self._turn = (self._turn + 1) % TURNS
        chosen = {name: turns[self._turn][slots] for name, turns in self._turns.items()}
        if obs is not None:
            for masked in self._masked:
                masked.write(chosen, np.isin(slots % self._agents, masked.agents), obs, self._random)
        return chosen


class _Masked:
    """The discrete action of a kind of agents whose observations have a mask: a number for each choice."""

    def __init__(self, kind: AgentKind) -> None:
        self.agents, self._mask = kind.agents, kind.obs_columns[MASK]
        (mask,) = (leaf for leaf in leaves(kind.observation_space, "obs") if leaf.name == MASK)
        choosing = [leaf for leaf in leaves(kind.action_space, "action") if leaf.choices]
        found = [leaf for leaf in choosing if sum(leaf.choices) == math.prod(mask.shape)]
        # A mask that fits no action is refused by the policy, which says what is allowed.
        self._action = kind.action_columns[found[0].name] if found else ""
        self._counts = found[0].choices if found else ()
        """Choices of each component."""

    def write(
        self, chosen: dict[str, np.ndarray], rows: np.ndarray, obs: Mapping[str, Any], random: np.random.Generator
    ) -> None:
        """Replace the actions of `rows` by allowed ones."""
        if not self._action or not rows.any():
            return
        values = obs[self._mask]
        mask = np.asarray(values.cpu() if hasattr(values, "cpu") else values)[rows].reshape(rows.sum(), -1)
        odds = (mask > 0) * random.uniform(0.5, 1.0, mask.shape)
        parts = np.split(odds, np.cumsum(self._counts)[:-1], axis=1)
        actions = chosen[self._action]
        actions[rows] = np.stack([part.argmax(1) for part in parts], 1).reshape(actions[rows].shape)
