"""ViZDoom with Sample Factory's hyper-parameters (its table A.5) and network (its figure A.1).

`basic`, `my_way_home` and `rocket_duel` make several passes over each batch instead of one. `rocket_duel` has a small
network without memory.
"""

from __future__ import annotations

from dataclasses import replace

from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.population.config import LeagueConfig
from paceline.schedule.config import APPOConfig

MEASUREMENTS = (
    "measurements=HEALTH,ARMOR,FRAGCOUNT,PLAYER_COUNT,SELECTED_WEAPON,SELECTED_WEAPON_AMMO,"
    "WEAPON1,WEAPON2,WEAPON3,WEAPON4,WEAPON5,WEAPON6,WEAPON7,AMMO2,AMMO3,AMMO4,AMMO5,AMMO6,AMMO7"
)


def basic() -> Config:
    """Doom: step in front of a monster and shoot it. A quarter of an hour on two cores."""
    # With one pass over each batch this short task has too few updates. Smaller batches are too noisy.
    base = _several_passes("basic?reward_scale=0.01", steps=100_000, minibatches=4)
    return replace(base, rollout_steps=64, pool=replace(base.pool, num_envs=32))


def my_way_home() -> Config:
    """Doom: find the armour in a maze of rooms, from a random start."""
    # A random policy finds it in one of five to eight episodes, so half of the paper's batches would have no reward.
    base = _several_passes("my_way_home?actions=multi_discrete", steps=10_000_000, minibatches=8)
    return replace(base, rollout_steps=128, appo=replace(base.appo, batch=8192))


def health_gathering_supreme() -> Config:
    """Doom: stay alive on a floor of acid. Find medical kits and avoid poison."""
    return _scenario("health_gathering_supreme?measurements=HEALTH&reward_scale=0.1", steps=10_000_000)


def deadly_corridor() -> Config:
    """Doom: run down a corridor of gunmen to the armour at its end."""
    return _scenario("deadly_corridor?measurements=HEALTH&reward_scale=0.01", steps=10_000_000)


def defend_the_center() -> Config:
    """Doom: shoot monsters that come from all sides, with little ammunition."""
    return _scenario("defend_the_center?measurements=HEALTH,AMMO2", steps=10_000_000)


def deathmatch_bots() -> Config:
    """Doom: a deathmatch against eight bots, with seven action heads and the numbers on a player's screen."""
    return _match(bots=8)


def duel_bots() -> Config:
    """Doom: a duel with one bot."""
    return _match(bots=1)


def duel() -> Config:
    """Doom: a duel of two agents that share one policy."""
    return _self_play("duel?measurements=true", matches=32)


def rocket_duel() -> Config:
    """Doom: a duel with rocket launchers in one room, against itself and its past selves. Ten minutes on two cores."""
    name = "rocket_duel?measurements=HEALTH,ATTACK_READY,DEAD&frameskip=4&frames=2100&resolution=64x40"
    base = _several_passes(name, steps=150_000, minibatches=4)
    return replace(
        base,
        pool=replace(base.pool, num_envs=4, on_error="restart"),
        policy=PolicyConfig(encoder="patches", encoder_size=128, hidden=(32,), activation="elu", normalize_obs=True),
        optimizer=replace(base.optimizer, learning_rate=5e-4),
        appo=APPOConfig(batch=1024),
        league=LeagueConfig(past_share=0.1, every=10_000, keep=32),
    )


def deathmatch() -> Config:
    """Doom: a deathmatch of four agents that share one policy, and four bots."""
    return _self_play("full_deathmatch?measurements=true", matches=16)


def battle() -> Config:
    """Doom: kill monsters in a maze, and find medical kits and ammunition in time."""
    return _scenario("battle?actions=multi_discrete&measurements=true", steps=100_000_000)


def battle2() -> Config:
    """Doom: a battle in a larger maze, where monsters, medical kits and ammunition are harder to find."""
    return _scenario("battle2?actions=multi_discrete&measurements=true", steps=100_000_000)


def _match(bots: int) -> Config:
    return _short_steps(_scenario(f"cig?bots={bots}&actions=multi_discrete&frameskip=2&{MEASUREMENTS}", 100_000_000))


def _self_play(name: str, matches: int) -> Config:
    """Each agent of a match is one stream of experience."""
    base = _short_steps(_scenario(name, steps=500_000_000))
    # Engines of one match are connected by UDP. A match that fails is replaced.
    return replace(base, pool=replace(base.pool, num_envs=matches, on_error="restart"))


def _short_steps(base: Config) -> Config:
    """Two frames per step, and a discount for that step (appendix A.3)."""
    return replace(base, ppo=replace(base.ppo, discount=0.995))


def _several_passes(name: str, steps: int, minibatches: int) -> Config:
    base = _scenario(name, steps)
    return replace(
        base,
        ppo=replace(base.ppo, epochs=4, minibatches=minibatches, trace_decay=0.95, clip_around="update"),
        optimizer=replace(base.optimizer, learning_rate=3e-4),
    )


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
