"""Continuous control by D4PG, with Acme's ratio of learning to collecting.

The hand and parkour have the paper's settings. With `_fast` they have many streams and large batches, after FastTD3.
The humanoid tasks have Acme's networks and the paper's learning rates. The other tasks are for a few cores, where
updates take most of the time: they have smaller networks, larger learning rates, and targets that move in every update.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from paceline.config import Config
from paceline.experience.config import LimiterConfig, ReplayConfig
from paceline.learner.config import D4PGConfig
from paceline.nets.config import ControlConfig, PolicyConfig, ValueConfig
from paceline.pool.config import PoolConfig
from paceline.sims.control.family import HAND

SUITE = (
    "acrobot-swingup",
    "acrobot-swingup_sparse",
    "cartpole-swingup",
    "cartpole-swingup_sparse",
    "cheetah-run",
    "finger-turn_easy",
    "finger-turn_hard",
    "fish-swim",
    "fish-upright",
    "hopper-stand",
    "humanoid-run",
    "humanoid-stand",
    "humanoid-walk",
    "manipulator-bring_ball",
    "swimmer-swimmer15",
    "swimmer-swimmer6",
    "walker-walk",
)
"""The tasks of the paper's table 1, by their present names, and walker-walk."""


def pendulum() -> Config:
    """Swing a pendulum up and hold it (Gymnasium's Pendulum-v1). A mean return of about -170 after 50,000 steps."""
    # Transitions of one step: longer ones hold the noise of exploration, and reach a lower return.
    return Config(
        env="gym:Pendulum-v1",
        system="d4pg",
        steps=50_000,
        pool=PoolConfig(num_envs=4),
        control=ControlConfig(
            actor_hidden=(64, 64), critic_hidden=(128, 64), value=ValueConfig(low=-1500.0, high=0.0, atoms=101)
        ),
        d4pg=D4PGConfig(batch=128, steps=1, actor_rate=1e-3, critic_rate=1e-3, target_period=1, target_share=0.01),
        limiter=LimiterConfig(samples_per_insert=32.0),
    )


def parkour_walker() -> Config:
    """Parkour: a planar walker runs over gaps, hurdles and platforms, by D4PG."""
    return _parkour("walker", atoms=51)


def parkour_humanoid() -> Config:
    """Parkour: a humanoid runs over gaps and hurdles, and through walls with openings, by D4PG."""
    return _parkour("humanoid", atoms=101)


def parkour_walker_fast() -> Config:
    """Parkour: a planar walker, with many streams and large batches, for a GPU. Passes the course in minutes."""
    return _fast(parkour_walker())


def parkour_humanoid_fast() -> Config:
    """Parkour: a humanoid, with many streams and large batches, for a GPU."""
    return _fast(parkour_humanoid())


def _parkour(body: str, atoms: int) -> Config:
    """The settings of the paper's section 4.3. Only a body that falls has negative returns."""
    return Config(
        env=f"parkour:{body}",
        system="d4pg",
        steps=100_000_000,
        pool=PoolConfig(num_envs=64),
        policy=PolicyConfig(reduced=("terrain",)),
        control=ControlConfig(value=ValueConfig(low=-20.0, high=100.0, atoms=atoms)),
        d4pg=D4PGConfig(batch=512, actor_rate=5e-5, critic_rate=5e-5),
    )


def _fast(paper: Config) -> Config:
    """FastTD3's networks, rates and ratio of updates, with a quarter of its batch, so that most of a GPU stays free.

    The critic stays that of D4PG: one, and categorical.
    """
    streams, batch, updates_per_step = 128, 8192, 2
    return dataclasses.replace(
        paper,
        pool=PoolConfig(num_envs=streams, kind="process"),
        policy=dataclasses.replace(paper.policy, normalize_obs=True),
        control=dataclasses.replace(
            paper.control, actor_hidden=(512, 256, 128), critic_hidden=(1024, 512, 256), activation="relu"
        ),
        d4pg=D4PGConfig(
            batch=batch,
            steps=3,
            noise=0.4,
            lowest_noise=0.001,
            actor_rate=3e-4,
            critic_rate=3e-4,
            target_period=1,
            target_share=0.05,
        ),
        replay=ReplayConfig(prioritized=False),
        limiter=LimiterConfig(samples_per_insert=updates_per_step * batch / streams, minimum=10_000),
    )


def dmc_pixels() -> Config:
    """Control suite from pixels: cartpole swingup, by D4PG with the augmentation and the numbers of DrQ-v2."""
    # An action is repeated, so a step has a reward of at most 2. DrQ-v2 has another encoder, two critics that each
    # predict one number, and noise that becomes smaller during the run.
    return Config(
        env="dmc:cartpole-swingup?pixels=84&stack=3&frameskip=2",
        system="d4pg",
        steps=500_000,
        pool=PoolConfig(num_envs=8),
        policy=PolicyConfig(encoder="nature"),
        control=ControlConfig(
            actor_hidden=(50, 1024, 1024),
            critic_hidden=(50, 1024, 1024),
            activation="relu",
            value=ValueConfig(low=0.0, high=200.0, atoms=101),
        ),
        d4pg=D4PGConfig(batch=256, steps=3, noise=0.2, target_period=1, target_share=0.01, random_shift=4),
        replay=ReplayConfig(capacity=500_000, stack=3, prioritized=False),
        limiter=LimiterConfig(samples_per_insert=128.0, minimum=2000),
    )


def suite_recipes() -> dict[str, Callable[[], Config]]:
    """One recipe for each task of the control suite: dmc_cartpole_swingup and so on."""
    return {f"dmc_{task.replace('-', '_')}": _recipe(task) for task in SUITE}


def _recipe(task: str) -> Callable[[], Config]:
    def recipe() -> Config:
        return _task(task)

    recipe.__doc__ = f"Control suite: {task.replace('-', ', ').replace('_', ' ')}, by D4PG."
    return recipe


def _task(name: str) -> Config:
    """Rewards are in [0, 1] and the discount is 0.99, so no return is above 100."""
    if name.startswith("humanoid"):
        return Config(
            env=f"dmc:{name}?flat=true",
            system="d4pg",
            steps=10_000_000,
            pool=PoolConfig(num_envs=32),
            control=ControlConfig(value=ValueConfig(low=0.0, high=100.0, atoms=101)),
        )
    return Config(
        env=f"dmc:{name}?flat=true",
        system="d4pg",
        steps=1_000_000,
        pool=PoolConfig(num_envs=8),
        control=ControlConfig(
            actor_hidden=(256, 256), critic_hidden=(256, 256), value=ValueConfig(low=0.0, high=100.0)
        ),
        d4pg=D4PGConfig(actor_rate=3e-4, critic_rate=3e-4, target_period=1, target_share=0.005),
    )


def hand_recipes() -> dict[str, Callable[[], Config]]:
    """Two recipes for each task of the hand: hand_catch, hand_catch_fast and so on."""
    recipes = {f"hand_{task}": _hand_recipe(task, _hand, "with the settings of D4PG's paper") for task in HAND}
    fast = "with many streams and large batches, for a GPU"
    return recipes | {f"hand_{task}_fast": _hand_recipe(task, _fast_hand, fast) for task in HAND}


def _hand_recipe(task: str, make: Callable[[str], Config], about: str) -> Callable[[], Config]:
    def recipe() -> Config:
        return make(task)

    recipe.__doc__ = f"Hand: {task.replace('_', ' ')}, {about}."
    return recipe


def _hand(task: str) -> Config:
    """Sections 4 and 4.2 of the paper. Rewards are in [0, 1] and the discount is 0.99, so no return is above 100."""
    return Config(
        env=f"hand:{task}",
        system="d4pg",
        steps=10_000_000,
        pool=PoolConfig(num_envs=64),
        control=ControlConfig(value=ValueConfig(low=0.0, high=100.0)),
        d4pg=D4PGConfig(batch=512, actor_rate=5e-5, critic_rate=5e-5),
    )


def _fast_hand(task: str) -> Config:
    """A cylinder is caught or lost in the first steps. With whole episodes most of the replay would show it at rest."""
    config = _fast(_hand(task))
    value = dataclasses.replace(config.control.value, atoms=101)
    env = f"{config.env}?max_episode_steps=60" if task == "catch" else config.env
    return dataclasses.replace(config, env=env, control=dataclasses.replace(config.control, value=value))
