"""One rank of `benchmarks.scaling`: the `ddppo` loop for a fixed number of rounds, in every setting in turn."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from typing import Any

import torch

from paceline.config import Config
from paceline.distributed.preemption import PreemptionConfig
from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.experience.rollout import Rollout
from paceline.learner.ppo import PPOConfig, PPOLearner
from paceline.learner.targets import Targets
from paceline.policy.actor import Actor
from paceline.policy.actor_critic import ActorCritic, PolicyConfig
from paceline.policy.cores import CoreConfig
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.schedule import SCHEDULES
from paceline.telemetry.clock import Clock

NUM_ENVS = 4
ROUNDS, COUNTED = 10, 5
"""Rounds of collecting and learning, and how many of the last ones are counted (the paper's appendix D)."""


class Rounds:
    """What a schedule needs of a run, for `ROUNDS` iterations."""

    def __init__(self, config: Config, group: Group, pool: Pool) -> None:
        self.config, self.group, self.pool = config, group, pool
        torch.manual_seed(1)
        self.policy = ActorCritic(pool.spec, config.policy)
        synchronize(self.policy, group)
        self.clock = Clock()
        self.actor = Actor(self.policy, pool.spec, group.device)
        self.targets = Targets(self.actor, group, config.ppo, pool.spec.num_slots)
        self.learner = PPOLearner(self.policy, group, config.ppo, config.optimizer)
        self.progress = 0.0
        self.marks: list[float] = []
        self.steps: list[int] = []

    def finished(self) -> bool:
        return len(self.marks) >= ROUNDS

    def report(self, rollout: Rollout, losses: dict[str, float]) -> None:
        self.marks.append(time.perf_counter())
        self.steps.append(rollout.num_rows)

    def checkpoint_due(self) -> bool:
        return False

    def throughput(self) -> float:
        """Steps of all ranks per second over the last rounds."""
        steps = self.group.sum_(torch.tensor([float(sum(self.steps[-COUNTED:]))])).item()
        return steps / (self.marks[-1] - self.marks[-COUNTED - 1])


def measure(group: Group, env: str, threshold: float, seed: int, steps: int) -> float:
    config = Config(
        env=env,
        rollout_steps=steps,
        policy=PolicyConfig(hidden=(64,), core=CoreConfig(kind="lstm", hidden=64)),
        ppo=PPOConfig(epochs=2, minibatches=2),
        preemption=PreemptionConfig(threshold=threshold),
        pool=PoolConfig(kind="process", num_envs=NUM_ENVS, workers=NUM_ENVS),
    )
    pool = make_pool(env, config.pool, seed=1000 * seed + group.rank)
    with contextlib.closing(pool):
        rounds: Any = Rounds(config, group, pool)
        group.any(False)  # everybody starts together
        SCHEDULES["ddppo"](rounds)
        return rounds.throughput()


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(_enabled=False)
    group = Group.join("cpu")
    for setting in settings:
        rate = measure(group, setting["env"], setting["threshold"], setting["seed"], setting["steps"])
        if group.is_first:
            print("RESULT " + json.dumps(setting | {"steps_per_second": rate}), flush=True)
    group.close()


if __name__ == "__main__":
    main()
