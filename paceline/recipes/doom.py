"""ViZDoom by Sample Factory's hyper-parameters (its table A.5; `basic` has its own) and network (its figure A.1)."""

from __future__ import annotations

from dataclasses import replace

from paceline.config import Config
from paceline.learner.optimizer import OptimizerConfig
from paceline.learner.ppo_config import PPOConfig
from paceline.policy.actor_critic import PolicyConfig
from paceline.policy.cores import CoreConfig
from paceline.pool.config import PoolConfig
from paceline.schedule.appo import APPOConfig

MEASUREMENTS = (
    "measurements=HEALTH,ARMOR,FRAGCOUNT,PLAYER_COUNT,SELECTED_WEAPON,SELECTED_WEAPON_AMMO,"
    "WEAPON1,WEAPON2,WEAPON3,WEAPON4,WEAPON5,WEAPON6,WEAPON7,AMMO2,AMMO3,AMMO4,AMMO5,AMMO6,AMMO7"
)


def basic() -> Config:
    """Doom: step in front of a monster and shoot it. A quarter of an hour on two cores."""
    base = _scenario("basic?reward_scale=0.01", steps=100_000)
    # So short a task cannot afford the paper's single pass over each batch: updates are too few, and with smaller batches too noisy.
    return replace(
        base,
        rollout_steps=64,
        pool=replace(base.pool, num_envs=32),
        ppo=replace(base.ppo, epochs=4, minibatches=4, trace_decay=0.95, clip_around="update"),
        optimizer=replace(base.optimizer, learning_rate=3e-4),
    )


def my_way_home() -> Config:
    """Doom: find the armour in a maze of rooms, from anywhere in it."""
    return _scenario("my_way_home", steps=10_000_000)


def health_gathering_supreme() -> Config:
    """Doom: stay alive on a floor of acid, by finding medical kits and avoiding poison."""
    return _scenario("health_gathering_supreme?measurements=HEALTH&reward_scale=0.1", steps=10_000_000)


def deadly_corridor() -> Config:
    """Doom: run down a corridor of gunmen to the armour at its end."""
    return _scenario("deadly_corridor?measurements=HEALTH&reward_scale=0.01", steps=10_000_000)


def defend_the_center() -> Config:
    """Doom: shoot what comes from all sides, with little ammunition."""
    return _scenario("defend_the_center?measurements=HEALTH,AMMO2", steps=10_000_000)


def deathmatch_bots() -> Config:
    """Doom: a deathmatch against eight bots, with seven action heads and what a player's screen says of the game."""
    return _match(bots=8)


def duel_bots() -> Config:
    """Doom: a duel with one bot."""
    return _match(bots=1)


def _match(bots: int) -> Config:
    """Two frames a step, and a discount to match (appendix A.3)."""
    base = _scenario(f"cig?bots={bots}&actions=multi_discrete&frameskip=2&{MEASUREMENTS}", steps=100_000_000)
    return replace(base, ppo=replace(base.ppo, discount=0.995))


def _scenario(name: str, steps: int) -> Config:
    return Config(
        env=f"doom:{name}",
        system="appo",
        steps=steps,
        rollout_steps=32,
        pool=PoolConfig(num_envs=64),
        policy=PolicyConfig(
            encoder="sample_factory",
            encoder_size=512,
            hidden=(128, 128),
            activation="elu",
            normalize_obs="measurements" in name,
            core=CoreConfig(kind="lstm", hidden=512),
        ),
        ppo=PPOConfig(
            epochs=1,
            minibatches=1,
            trace_decay=1.0,
            clip=0.1,
            clip_inverse=True,
            entropy_coef=0.003,
            normalize_advantage=True,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-4, eps=1e-6, max_grad_norm=4.0),
        appo=APPOConfig(batch=2048),
    )
