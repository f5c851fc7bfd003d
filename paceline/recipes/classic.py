"""Small tasks that take a minute."""

from __future__ import annotations

from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.config import PoolConfig


def cartpole() -> Config:
    """Balance a pole (Gymnasium's CartPole-v1). Solved at a mean return of 475."""
    return Config(
        env="gym:CartPole-v1",
        steps=100_000,
        rollout_steps=64,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(hidden=(64, 64), critic="separate"),
        ppo=PPOConfig(epochs=6, minibatches=8, entropy_coef=0.0, normalize_advantage=True, discount=0.99),
        optimizer=OptimizerConfig(learning_rate=1.5e-3, schedule="linear"),
    )


def memory() -> Config:
    """Remember a cue until the end of an episode that is longer than a rollout. Needs a recurrent policy."""
    return Config(
        env="paceline.envs.memory:Memory?length=12",
        steps=100_000,
        rollout_steps=8,
        pool=PoolConfig(num_envs=32),
        policy=PolicyConfig(hidden=(64,), core=CoreConfig(kind="lstm", hidden=64)),
        ppo=PPOConfig(epochs=4, minibatches=4, entropy_coef=0.003, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=1.5e-3, schedule="linear"),
    )
