"""One rank of `benchmarks.rearrangement_ranks`: trains under every system, with the same simulators."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from paceline.config import Config
from paceline.distributed.runtime import Group
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.schedule.config import VERConfig
from paceline.schedule.table import make_schedule

from .ranks import Rounds
from .stragglers_rank import SYSTEMS

ITERATIONS = 3


def measure(group: Group, pool: Pool, setting: dict[str, Any], seed: int) -> tuple[float, float]:
    """Mean and best steps per second of all ranks, learning included."""
    core = CoreConfig(kind="lstm", hidden=128)
    images = PolicyConfig(encoder=setting["encoder"], encoder_size=128, hidden=(128,), core=core, activation="relu")
    config = Config(
        env=setting["env"],
        system=SYSTEMS[setting["system"]],
        ver=VERConfig(variable=setting["system"] != "NoVER"),
        rollout_steps=setting["steps"],
        policy=PolicyConfig(hidden=(128,), core=core) if setting["images"] == "none" else images,
        ppo=PPOConfig(epochs=2, minibatches=2),
        pool=pool_config(setting),
    )
    pool.reset(seed)
    rounds = Rounds(config, group, pool, ITERATIONS, setting["seconds"])
    group.any(False)  # all ranks start together
    make_schedule(rounds, config, rounds.learners, rounds.sampler)()
    return rounds.rates()


def pool_config(setting: dict[str, Any]) -> PoolConfig:
    return PoolConfig(kind="process", num_envs=setting["envs"], workers=setting["envs"])


def join(device: str) -> Group:
    """The group of ranks, which share one GPU. NCCL refuses that, so they reduce by gloo."""
    group = Group.join("cpu")
    if device == "cuda":
        group.device = torch.device("cuda", 0)
    return group


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    group = join(settings[0]["device"])
    with make_pool(settings[0]["env"], pool_config(settings[0]), seed=group.rank) as pool:
        for number, setting in enumerate(settings):
            mean, best = measure(group, pool, setting, seed=1000 * (number // len(SYSTEMS)) + group.rank)
            if group.is_first:
                print("RESULT " + json.dumps(setting | {"mean": mean, "best": best}), flush=True)
    group.close()


if __name__ == "__main__":
    main()
