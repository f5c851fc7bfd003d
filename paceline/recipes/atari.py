"""Atari games."""

from __future__ import annotations

from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig


def breakout() -> Config:
    """Breakout from pixels: four stacked frames of 84x84."""
    return _game("Breakout")


def pong() -> Config:
    """Pong from pixels."""
    return _game("Pong")


def qbert() -> Config:
    """Q*bert from pixels."""
    return _game("Qbert")


def space_invaders() -> Config:
    """Space Invaders from pixels."""
    return _game("SpaceInvaders")


def seaquest() -> Config:
    """Seaquest from pixels."""
    return _game("Seaquest")


def _game(name: str) -> Config:
    """The settings of PPO's authors, the same for all games, with twice as many environments."""
    return Config(
        env=f"atari:{name}?episodic_life=true",
        steps=10_000_000,
        rollout_steps=128,
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(encoder="nature"),
        ppo=PPOConfig(epochs=4, minibatches=4, clip=0.1, entropy_coef=0.01, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=2.5e-4, schedule="linear"),
    )
