"""Self-play in games that are small enough for a laptop."""

from __future__ import annotations

from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.population.config import LeagueConfig


def duel_selfplay() -> Config:
    """Pong for two: one policy plays against itself and its past selves. Its Elo rating rises within minutes."""
    return Config(
        env="tensor:pong",
        steps=4_000_000,
        rollout_steps=32,
        pool=PoolConfig(num_envs=256),
        policy=PolicyConfig(hidden=(64, 64), activation="relu", critic="separate"),
        ppo=PPOConfig(epochs=2, minibatches=4, entropy_coef=0.02, normalize_advantage=True, discount=0.99),
        optimizer=OptimizerConfig(learning_rate=2e-3, schedule="linear"),
        league=LeagueConfig(past_share=0.3, every=100_000),
    )
