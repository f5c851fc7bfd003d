"""The policy of the PPO systems that the settings name."""

from __future__ import annotations

from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from paceline.nets.own_policy import OwnPolicy
from paceline.nets.ppo_policy import PPOPolicy
from paceline.pool.protocol import PoolSpec


def make_policy(spec: PoolSpec, config: PolicyConfig) -> PPOPolicy:
    """A new policy for the observations and actions of `spec`."""
    return OwnPolicy(spec, config) if config.is_own else ActorCritic(spec, config)
