"""Continuous control with MuJoCo."""

from __future__ import annotations

from paceline.config import Config
from paceline.learner.optimizer import OptimizerConfig
from paceline.learner.ppo import PPOConfig
from paceline.policy.actor_critic import PolicyConfig
from paceline.pool.config import PoolConfig


def halfcheetah() -> Config:
    """Run with a planar cheetah (Gymnasium's HalfCheetah-v5)."""
    return Config(
        env="gym:HalfCheetah-v5",
        steps=1_000_000,
        rollout_steps=128,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(hidden=(64, 64), critic="separate", normalize_obs=True),
        ppo=PPOConfig(epochs=10, minibatches=32, entropy_coef=0.0, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=3e-4, schedule="linear"),
    )
