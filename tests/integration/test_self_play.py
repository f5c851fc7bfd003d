"""Plain self-play: one policy plays both sides of the built-in Pong."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.envs.pong_opponents import RandomOpponent
from paceline.envs.tensor_pong import ACTION_SPACE, OBSERVATION_SPACE, TensorPong
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.session import train


def dueling(**changes) -> Config:
    config = Config(
        env="tensor:pong",
        steps=200_000,
        rollout_steps=32,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=64),
        policy=PolicyConfig(hidden=(64, 64), activation="relu", critic="separate"),
        ppo=PPOConfig(epochs=2, minibatches=4, entropy_coef=0.02, normalize_advantage=True),
        optimizer=OptimizerConfig(learning_rate=2e-3, schedule="linear"),
    )
    return dataclasses.replace(config, **changes)


@torch.no_grad()
def wins_against_random(policy) -> float:
    """The mean of 200 short matches, half of them on either side."""
    simulator, opponent = TensorPong(200, points=1), RandomOpponent(OBSERVATION_SPACE, ACTION_SPACE)
    slots = torch.arange(400)
    own = slots % 2 == slots // 200
    wins = torch.full((400,), torch.nan)
    obs, generator = simulator.reset(0), torch.Generator().manual_seed(0)
    while wins[own].isnan().any():
        chosen, _ = policy.play(obs, policy.initial_state(400), generator)
        result = simulator.step(torch.where(own, chosen["action"], opponent(obs)))
        first = (result.terminated | result.truncated) & wins.isnan()
        wins[first] = simulator.last_measures["win"][first]
        obs = result.obs
    return float(wins[own].mean())


def test_self_play_is_learned(tmp_path):
    """Random play wins half of its matches."""
    run = train(dueling(), tmp_path)
    assert run.episodes.means()["episode_return"] == 0
    assert run.episodes.means()["episode_win"] == 0.5
    assert wins_against_random(run.policy) > 0.75


def test_a_resumed_run_is_bit_equal(tmp_path):
    config = dueling(
        deterministic=True,
        steps=4_096,
        pool=PoolConfig(num_envs=16),
        optimizer=OptimizerConfig(learning_rate=1e-3, schedule="constant"),
    )
    train(config, tmp_path / "whole")
    train(dataclasses.replace(config, steps=2_048), tmp_path / "parts")
    train(config, tmp_path / "parts", resume="latest")
    whole, parts = (CheckpointFolder(tmp_path / name / "checkpoints").load().weights for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(value, parts[name], err_msg=name)
