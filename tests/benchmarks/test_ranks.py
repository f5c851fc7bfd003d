"""The stand-in for a run in the benchmarks with several ranks."""

from __future__ import annotations

from benchmarks.ranks import Rounds
from paceline.distributed.runtime import Group
from paceline.pool import PoolConfig, make_pool
from paceline.process_settings import restored_settings
from paceline.recipes import find
from paceline.schedule.protocol import TrainingRun


def test_it_has_all_that_a_training_loop_needs():
    needed = {name for name in vars(TrainingRun) if not name.startswith("_")} | TrainingRun.__annotations__.keys()
    with (
        restored_settings(),
        make_pool("gym:CartPole-v1", PoolConfig(kind="serial", num_envs=2)) as pool,
        Group.join("cpu") as group,
    ):
        rounds = Rounds(find("cartpole"), group, pool, rounds=1)
        assert [name for name in sorted(needed) if not hasattr(rounds, name)] == []
