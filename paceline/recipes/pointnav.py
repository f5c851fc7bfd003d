"""PointGoal navigation in the embedded simulator."""

from __future__ import annotations

import dataclasses

from paceline.accel.config import ComputeConfig
from paceline.config import Config
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import CoreConfig, HeadConfig, PolicyConfig
from paceline.pool.config import PoolConfig

STOP_RARELY = HeadConfig(initial_logits=(-4.0, 0.0, 0.0, 0.0))
"""Stopping ends the episode. An agent that stops in a quarter of its steps would see nothing of a scene."""


def pointnav_small() -> Config:
    """Walk to a point in unseen flats of one or two rooms, from depth. Minutes on a laptop (with --ranks 2)."""
    return Config(
        env="pointnav:small?resolution=32&scenes=256",
        steps=1_500_000,
        seconds=345.0,
        rollout_steps=64,
        device="cpu",
        pool=PoolConfig(num_envs=32),
        policy=PolicyConfig(encoder="patches", encoder_size=128, hidden=(64,), activation="relu", head=STOP_RARELY),
        ppo=PPOConfig(epochs=2, minibatches=8, entropy_coef=0.01, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="linear"),
    )


def pointnav() -> Config:
    """Walk to a point in unseen apartments, from depth. DD-PPO's agent with a ResNet18, on a GPU."""
    return Config(
        env="pointnav:full?resolution=64&scenes=4096&depth_dtype=float16",
        steps=300_000_000,
        seconds=590.0,
        rollout_steps=32,
        device="cuda",
        pool=PoolConfig(num_envs=4096),
        policy=PolicyConfig(
            encoder="resnet18",
            hidden=(64,),
            activation="relu",
            core=CoreConfig(kind="lstm", hidden=512, layers=2),
            head=STOP_RARELY,
        ),
        ppo=PPOConfig(epochs=1, minibatches=32, entropy_coef=0.01, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=8e-4, schedule="linear"),
        compute=ComputeConfig(precision="bfloat16", compile=True),
    )


def pointnav_rgb() -> Config:
    """PointNav from colours alone."""
    return _with_env(pointnav(), "pointnav:full?resolution=64&scenes=4096&sensors=rgb")


def pointnav_rgbd() -> Config:
    """PointNav from colours and depth."""
    return _with_env(pointnav(), "pointnav:full?resolution=64&scenes=4096&sensors=depth%2Brgb&depth_dtype=float16")


def pointnav_blind() -> Config:
    """PointNav without a camera: the agent knows where the goal is, and whether a step has brought it closer."""
    policy = dataclasses.replace(pointnav().policy, encoder=PolicyConfig.encoder)
    return dataclasses.replace(pointnav(), env="pointnav:full?scenes=4096&sensors=blind", policy=policy)


def pointnav_nogps() -> Config:
    """PointNav without GPS and compass: the goal is given relative to the start, and the agent has to track itself."""
    return _with_env(pointnav(), "pointnav:full?resolution=64&scenes=4096&depth_dtype=float16&gps=false")


def pointnav_paper() -> Config:
    """DD-PPO's agent and settings: SE-ResNeXt50 on depth of 256x256. Eight GPUs have the paper's 256 environments."""
    return Config(
        env="pointnav:full?resolution=256&scenes=4096&depth_dtype=float16",
        steps=2_500_000_000,
        rollout_steps=128,
        device="cuda",
        pool=PoolConfig(num_envs=32),
        policy=PolicyConfig(
            encoder="se_resnext50",
            embedding=32,
            hidden=(),
            core=CoreConfig(kind="lstm", hidden=512, layers=2),
        ),
        ppo=PPOConfig(epochs=2, minibatches=2, normalize_advantage=False),
        optimizer=OptimizerConfig(learning_rate=2.5e-4),
        compute=ComputeConfig(precision="bfloat16", compile=True),
    )


def _with_env(config: Config, env: str) -> Config:
    return dataclasses.replace(config, env=env)
