"""One rank of `benchmarks.scaling`: runs the `ddppo` loop for a fixed number of rounds with every setting."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import torch

from paceline.config import Config
from paceline.distributed.config import PreemptionConfig
from paceline.distributed.runtime import Group
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.schedule.table import make_schedule

from .ranks import Rounds

NUM_ENVS = 4
ROUNDS, COUNTED = 10, 5
"""Rounds of collecting and learning, and the number of last rounds that count (the paper's appendix D)."""


def measure(group: Group, pool: Pool, env: str, threshold: float, seed: int, steps: int, first: int) -> float:
    config = Config(
        env=env,
        rollout_steps=steps,
        policy=PolicyConfig(hidden=(64,), core=CoreConfig(kind="lstm", hidden=64)),
        ppo=PPOConfig(epochs=2, minibatches=2),
        preemption=PreemptionConfig(threshold=threshold),
    )
    pool.reset(1000 * seed + first + group.rank)
    rounds = Rounds(config, group, pool, ROUNDS)
    group.any(False)  # all ranks start together
    make_schedule(rounds, config, rounds.learners, rounds.sampler)()
    return rounds.rates(COUNTED)[0]


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(_enabled=False)
    group = Group.join("cpu")
    config = PoolConfig(kind="process", num_envs=NUM_ENVS, workers=NUM_ENVS)
    kinds = [(env_of(setting, group), setting) for setting in settings]
    for env, same in itertools.groupby(kinds, key=lambda kind: kind[0]):
        with make_pool(env, config) as pool:
            for _, setting in same:
                asked = {name: setting[name] for name in ("threshold", "seed", "steps", "first")}
                rate = measure(group, pool, env, **asked)
                if group.is_first:
                    print("RESULT " + json.dumps(setting | {"steps_per_second": rate}), flush=True)
    group.close()


def env_of(setting: dict[str, Any], group: Group) -> str:
    """Every fourth rank has the slow simulators."""
    return setting["slow_env" if (setting["first"] + group.rank) % 4 == 1 else "env"]


if __name__ == "__main__":
    main()
