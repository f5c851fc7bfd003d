"""Tiny tasks that a system learns within seconds, if it is right.

The docstring of each test has its rate of false alarms over twenty seeds. The command that measures it is
`pytest -k is_learned --learning-seeds 20`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from unittest import mock

from paceline import recipes
from paceline.config import Config
from paceline.nets.config import CoreConfig
from paceline.pool.config import PoolConfig
from paceline.run import Run
from paceline.session import train

BALANCED = 300.0
"""A mean return of CartPole. An agent that learns nothing has less than 30."""
REMEMBERED = 0.9
"""A mean return of the memory task. An agent without memory has 0 on average."""


def balancing(system: str, seed: int) -> Config:
    """CartPole, in this process."""
    base = dataclasses.replace(recipes.find("cartpole"), system=system, seed=seed, device="cpu", threads=1)
    return dataclasses.replace(base, pool=PoolConfig(num_envs=16, kind="serial"))


def remembering(system: str, core: str, seed: int, num_envs: int = 32) -> Config:
    """The memory task, in this process. Rollouts are shorter than episodes, so the cue is always in another rollout.
    The difference is only one step: with four more, as in the recipe, one seed in six takes three times as long."""
    base = dataclasses.replace(recipes.find("memory"), env="paceline.envs.memory:Memory?length=9")
    policy = dataclasses.replace(base.policy, core=CoreConfig(kind=core, hidden=64))
    pool = PoolConfig(num_envs=num_envs, kind="serial")
    return dataclasses.replace(base, policy=policy, pool=pool, system=system, seed=seed, device="cpu", threads=1)


def train_until(config: Config, threshold: float, folder: Path) -> float:
    """Train until the mean return of the latest 100 episodes is at the threshold, or to the end; the mean."""
    plain = Run.finished

    def finished(run: Run) -> bool:
        over, mean = plain(run), run.episodes.means()["episode_return"]  # both the same on all ranks
        return over or (mean is not None and mean >= threshold)

    with mock.patch.object(Run, "finished", finished):
        mean = train(config, folder).episodes.means()["episode_return"]
    assert mean is not None
    return mean


def learns(config: Config, threshold: float, folder: Path) -> None:
    assert train_until(config, threshold, folder) >= threshold
