"""Noise in navigation: several simulators side by side are the same as one after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.navigation_noise import Plan, SideBySide, interleaved, measure, noises, play_run, separated
from benchmarks.report import context
from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.evaluation.episode_list import fixed_episodes, play
from paceline.sims.navigation.evaluation.pointnav import GoalFollower
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation

CONFIG = PointNavConfig(sensors="blind", max_episode_steps=24)


def test_simulators_side_by_side_play_what_each_plays_alone():
    bank = SceneBank.generate("small", "val", 3)
    scenes, numbers = fixed_episodes(bank, 8)
    settings = noises((0.2,))

    def simulators():
        return [Navigation(4, "cpu", replace(CONFIG, **noise.options), bank=bank) for noise in settings]

    follower = GoalFollower(simulators()[0])
    together, count = SideBySide(simulators()), len(settings)
    lists = (interleaved(values, count, 4) for values in (scenes, numbers))
    played = play(together, follower.act, *lists)
    for number, simulator in enumerate(simulators()):
        alone = play(simulator, follower.act, scenes, numbers)
        for name, values in alone.items():
            np.testing.assert_array_equal(separated(played[name], count, 4)[number], values)


def test_every_noise_alone_and_all_together():
    found = noises((0.1, 0.2))
    assert [(noise.kind, noise.level) for noise in found[:3]] == [("none", 0.0), ("actuation", 0.1), ("actuation", 0.2)]
    assert len(found) == 9
    assert found[-1].options == {"actuation_noise": 0.2, "image_noise": 0.2, "gps_noise": 0.2}


def test_only_runs_of_pointnav_and_something_to_evaluate():
    with pytest.raises(UsageError, match="nothing to evaluate: give --runs or --agents"):
        Plan()
    with pytest.raises(UsageError, match="is no navigation task"):
        play_run("cartpole", noises(()), 2)


def test_a_table_for_each_player():
    torch.manual_seed(0)
    plan = Plan(runs=("pointnav",), agents=("goal-follower",), env="pointnav:small?scenes=4", episodes=2, levels=())
    result = measure(plan, context("test"))
    assert [table.name for table in result.tables] == ["player_0", "player_1"]
    assert [row[:2] for row in result.tables[0].rows] == [("none", "0")]
