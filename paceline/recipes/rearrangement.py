"""Rearrangement: the skills of VER's section 4, in the embedded simulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from paceline.accel.config import ComputeConfig
from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import CoreConfig, HeadConfig, PolicyConfig
from paceline.pool.config import PoolConfig

ABOUT = {
    "navigate": "Drive to an object or to its goal",
    "pick": "Take an object",
    "place": "Put an object to its goal",
    "open_fridge": "Open the fridge",
    "close_fridge": "Close the fridge",
    "open_drawer": "Open a drawer",
    "close_drawer": "Close a drawer",
}


def pick() -> Config:
    """Take an object in procedural kitchens, from depth, on a CPU. Stops after ten minutes."""
    return Config(
        env="rearrange:pick?resolution=32&scenes=64",
        steps=10_000_000,
        seconds=600.0,
        rollout_steps=32,
        device="cpu",
        pool=PoolConfig(num_envs=64),
        policy=PolicyConfig(
            encoder="patches",
            encoder_size=128,
            hidden=(128,),
            activation="relu",
            head=HeadConfig(initial_log_std=-0.5),
        ),
        ppo=PPOConfig(epochs=3, minibatches=8, entropy_coef=0.0, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="linear"),
    )


def pick_gpu() -> Config:
    """Take an object in procedural apartments, from depth, on a GPU. Stops after ten minutes."""
    return Config(
        env="rearrange:pick?tier=full&resolution=64&scenes=1024&depth_dtype=float16",
        steps=200_000_000,
        seconds=600.0,
        rollout_steps=32,
        device="cuda",
        pool=PoolConfig(num_envs=1024),
        policy=PolicyConfig(
            encoder="resnet18",
            hidden=(128,),
            activation="relu",
            core=CoreConfig(kind="lstm", hidden=512),
            head=HeadConfig(initial_log_std=-0.5),
        ),
        ppo=PPOConfig(epochs=2, minibatches=8, entropy_coef=0.0, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=5e-4, schedule="linear"),
        compute=ComputeConfig(precision="bfloat16", compile=True),
    )


def navigate_gpu() -> Config:
    """Drive to an object or to its goal in procedural apartments, from depth, on a GPU. Stops after ten minutes. This
    skill needs more steps than the others, so it has more streams, and learns from each step once."""
    config = pick_gpu()
    ppo = dataclasses.replace(config.ppo, epochs=1, minibatches=32)
    return dataclasses.replace(config, pool=PoolConfig(num_envs=4096), ppo=ppo)


def pick_paper() -> Config:
    """Take an object in procedural apartments, with VER's agent and settings. With --ranks 8 on eight GPUs it has the
    paper's 128 environments."""
    return Config(
        env="rearrange:pick?tier=full&resolution=128&scenes=1024&depth_dtype=float16&behind=true",
        system="ver",
        steps=500_000_000,
        rollout_steps=128,
        device="cuda",
        pool=PoolConfig(num_envs=16),
        policy=PolicyConfig(encoder="ver_resnet18", hidden=(), core=CoreConfig(kind="lstm", hidden=512, layers=2)),
        ppo=PPOConfig(
            epochs=3, minibatches=2, entropy_coef=1e-3, entropy_target=0.0, normalize_advantage=False, max_rho=1.0
        ),
        optimizer=OptimizerConfig(learning_rate=2.5e-4, schedule="cosine"),
        compute=ComputeConfig(precision="bfloat16", compile=True),
    )


def open_fridge_mujoco() -> Config:
    """Open the fridge in procedural kitchens in MuJoCo, from depth, on a CPU. Stops after an hour."""
    kinematic = pick()
    return dataclasses.replace(
        kinematic,
        env="rearrange_mujoco:open_fridge?resolution=32&scenes=64",
        system="ver",
        seconds=3600.0,
        rollout_steps=128,
        pool=PoolConfig(num_envs=16),
    )


def recipes() -> dict[str, Callable[[], Config]]:
    """`rearrange-pick`, `rearrange-pick-gpu`, `rearrange-pick-paper` and the same for the other skills.

    One of them is also there in MuJoCo.
    """
    made: dict[str, Callable[[], Config]] = {}
    for skill in ABOUT:
        name = f"rearrange-{skill.replace('_', '-')}"
        on_a_gpu = navigate_gpu if skill == "navigate" else pick_gpu
        for suffix, recipe in (("", pick), ("-gpu", on_a_gpu), ("-paper", pick_paper)):
            made[name + suffix] = _of(skill, recipe)
    made["rearrange-open-fridge-mujoco"] = open_fridge_mujoco
    return made


def _of(skill: str, recipe: Callable[[], Config]) -> Callable[[], Config]:
    def of_skill() -> Config:
        config = recipe()
        return dataclasses.replace(config, env=config.env.replace("rearrange:pick", f"rearrange:{skill}"))

    of_skill.__doc__ = (recipe.__doc__ or "").replace("Take an object", ABOUT[skill])
    return of_skill
