"""One rank of `benchmarks.stragglers`: runs every system with every simulator."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import torch

from paceline.config import Config, System
from paceline.distributed.runtime import Group
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import PoolConfig, make_pool
from paceline.schedule.config import VERConfig
from paceline.schedule.table import make_schedule

from .ranks import Rounds

SYSTEMS: dict[str, System] = {"DD-PPO": "ddppo", "NoVER": "ver", "VER": "ver", "APPO": "appo"}
NUM_ENVS = 16
ROUNDS = 4


def measure(group: Group, setting: dict[str, Any]) -> tuple[float, float]:
    """Mean and best steps per second of all ranks, learning included."""
    images = setting.get("images", False)
    config = Config(
        env=setting["env"],
        system=SYSTEMS[setting["system"]],
        ver=VERConfig(variable=setting["system"] != "NoVER"),
        rollout_steps=setting["steps"],
        policy=PolicyConfig(
            encoder="patches", encoder_size=64, hidden=(64,), core=CoreConfig(kind="lstm", hidden=64), activation="relu"
        )
        if images
        else PolicyConfig(hidden=(64,), core=CoreConfig(kind="lstm", hidden=64)),
        ppo=PPOConfig(epochs=2, minibatches=2),
        pool=PoolConfig(kind="process", num_envs=NUM_ENVS, workers=setting.get("workers", NUM_ENVS)),
    )
    pool = make_pool(config.env, config.pool, seed=1 + 1000 * group.rank)
    with contextlib.closing(pool):
        rounds = Rounds(config, group, pool, ROUNDS, setting["seconds"])
        group.any(False)  # all ranks start together
        make_schedule(rounds, config, rounds.learners, rounds.sampler)()
        return rounds.rates()


def main() -> None:
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(_enabled=False)
    group = Group.join("cpu")
    for setting in json.loads(sys.argv[1]):
        mean, best = measure(group, setting)
        if group.is_first:
            print("RESULT " + json.dumps(setting | {"mean": mean, "best": best}), flush=True)
    group.close()


if __name__ == "__main__":
    main()
