"""Settings for an environment without a recipe, by the kind of its observations and actions."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.config import Config
from paceline.envs import given
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.experience.config import ReplayConfig
from paceline.learner.config import D4PGConfig, OptimizerConfig, PPOConfig
from paceline.nets.config import ControlConfig, PolicyConfig, ValueConfig
from paceline.nets.images import is_image, seen_shape
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.pool.protocol import PoolSpec
from paceline.systems import SYSTEMS

SMALL = 36
"""The encoder `nature` needs images of so many pixels in each direction."""
REPLAYED_IMAGES = 100_000
"""Transitions with images in a replay. With 84x84 pixels in colour these are 4.2 GB."""


def default_config(
    env: str | Callable[..., Any], system: str = Config.system, *, recurrent: bool = False, own_policy: bool = False
) -> tuple[Config, str]:
    """A configuration for `env`, and in words what it was chosen for. Makes one environment to see its spaces.

    A `recurrent` policy shares its memory with the critic. A whole policy of the user's own normalises what it sees
    itself.
    """
    factory = resolve(env)
    one = PoolConfig(kind="serial" if factory.steps_singly else "auto", num_envs=1)
    device = "cpu" if factory.steps_singly else _device_of_training()
    with contextlib.closing(make_pool(factory, one, device=device)) as pool:
        spec = pool.spec
    name = env if isinstance(env, str) else given.id_of(env)
    images, vectors = (any(is_image(leaf) == wanted for leaf in spec.obs) for wanted in (True, False))
    seen = " and ".join(word for word, is_there in (("images", images), ("vectors", vectors)) if is_there)
    continuous = any(isinstance(leaf.space, spaces.Box) for leaf in spec.actions)
    config = (
        _for_d4pg(spec, name, images=images) if _is_d4pg(system) else _for_ppo(images=images, continuous=continuous)
    )
    if any(is_image(leaf) and min(seen_shape(leaf)[1:]) < SMALL for leaf in spec.obs):
        config = dataclasses.replace(config, policy=dataclasses.replace(config.policy, encoder="impala"))
    config = dataclasses.replace(config.under(system), env=name)
    if recurrent and not _is_d4pg(system):
        config = dataclasses.replace(config, policy=dataclasses.replace(config.policy, critic="shared"))
    if own_policy and not _is_d4pg(system):
        config = dataclasses.replace(config, policy=PolicyConfig())
    return config, f"{seen} as observations, {'continuous' if continuous else 'discrete'} actions"


def _device_of_training() -> str:
    """A batched simulator may run only there. PyTorch is not imported before: wrong ids are answered at once."""
    from paceline.distributed.runtime import choose_device

    return str(choose_device("auto"))


def _is_d4pg(system: str) -> bool:
    return system in SYSTEMS and SYSTEMS[system].family == "d4pg"


def _for_ppo(*, images: bool, continuous: bool) -> Config:
    if images:  # the settings of PPO's authors for Atari, with twice as many environments
        return Config(
            steps=10_000_000,
            pool=PoolConfig(num_envs=16),
            policy=PolicyConfig(encoder="nature"),
            ppo=PPOConfig(epochs=4, minibatches=4, clip=0.1, entropy_coef=0.01, normalize_advantage=True),
            optimizer=OptimizerConfig(learning_rate=2.5e-4, schedule="linear"),
        )
    policy = PolicyConfig(hidden=(64, 64), critic="separate", normalize_obs=True)
    if continuous:  # the settings of PPO's authors for MuJoCo
        ppo = PPOConfig(epochs=10, minibatches=32, entropy_coef=0.0, normalize_advantage=True)
        optimizer = OptimizerConfig(learning_rate=3e-4, schedule="linear")
    else:
        ppo = PPOConfig(epochs=4, minibatches=8, entropy_coef=0.003, normalize_advantage=True)
        optimizer = OptimizerConfig(learning_rate=1e-3, schedule="linear")
    return Config(pool=PoolConfig(num_envs=16), policy=policy, ppo=ppo, optimizer=optimizer)


def _for_d4pg(spec: PoolSpec, name: str, *, images: bool) -> Config:
    """The range of returns is not known, so values are not categorical."""
    if not all(isinstance(leaf.space, spaces.Box) and np.isfinite(leaf.space.low).all() for leaf in spec.actions):
        raise UsageError(f"d4pg needs continuous actions with bounds, and {name} has {spec.action_space}")
    return Config(
        system="d4pg",
        pool=PoolConfig(num_envs=8),
        control=ControlConfig(actor_hidden=(256, 256), critic_hidden=(256, 256), value=ValueConfig(kind="mixture")),
        d4pg=D4PGConfig(actor_rate=3e-4, critic_rate=3e-4, target_period=1, target_share=0.005),
        replay=ReplayConfig(capacity=REPLAYED_IMAGES) if images else ReplayConfig(),
    )
