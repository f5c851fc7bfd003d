"""Continuous control with MuJoCo."""

from __future__ import annotations

from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig


def halfcheetah() -> Config:
    """Run with a planar cheetah (Gymnasium's HalfCheetah-v5)."""
    return _task("HalfCheetah-v5")


def hopper() -> Config:
    """Hop on one leg (Gymnasium's Hopper-v5)."""
    return _task("Hopper-v5")


def walker2d() -> Config:
    """Walk on two legs in a plane (Gymnasium's Walker2d-v5)."""
    return _task("Walker2d-v5")


def ant() -> Config:
    """Run on four legs (Gymnasium's Ant-v5)."""
    return _task("Ant-v5")


def _task(name: str) -> Config:
    return Config(
        env=f"gym:{name}",
        steps=1_000_000,
        rollout_steps=128,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(hidden=(64, 64), critic="separate", normalize_obs=True),
        ppo=PPOConfig(epochs=10, minibatches=32, entropy_coef=0.0, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=3e-4, schedule="linear"),
    )
