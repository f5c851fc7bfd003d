"""Exploration: visited cells against a set of positions, rounded down."""

import math

import pytest
import torch

from paceline.errors import UsageError
from paceline.sims.navigation.config import ExploreConfig
from paceline.sims.navigation.evaluation.baselines import play_baseline
from paceline.sims.navigation.evaluation.episode_list import play
from paceline.sims.navigation.evaluation.explore import EVALUATION, ExploreOracle
from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.navigation.layout import FORWARD, LEFT
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.explore import NUDGE
from tests.sims.navigation.rooms import bank_of_one, random_steps, room


def cell(start, pose):
    dx, dy = pose[0] - start[0], pose[1] - start[1]
    cos, sin = math.cos(start[2]), math.sin(start[2])
    return math.floor(dx * cos + dy * sin + NUDGE), math.floor(dy * cos - dx * sin + NUDGE)


@pytest.mark.parametrize("tier", ["small", "full"])
def test_cells_are_those_of_a_set(tier, small_bank, full_bank):
    bank = small_bank if tier == "small" else full_bank
    simulator = Navigation(16, "cpu", ExploreConfig(tier=tier, sensors="blind", max_episode_steps=90), bank=bank)
    simulator.reset(0)
    starts, visited = simulator.poses.tolist(), [{(0, 0)} for _ in range(16)]
    num_ends = 0
    for step in random_steps(simulator, 300, stop=0.01):
        poses, counts = simulator.last_poses.tolist(), simulator.last_measures["cells"].tolist()
        ended, next_starts = (step.terminated | step.truncated).tolist(), simulator.poses.tolist()
        for i in range(16):
            before = len(visited[i])
            visited[i].add(cell(starts[i], poses[i]))
            assert float(step.reward[i]) == 0.25 * (len(visited[i]) - before)
            assert counts[i] == len(visited[i])
            if ended[i]:
                starts[i], visited[i] = next_starts[i], {(0, 0)}
                num_ends += 1
    assert num_ends > 40


def test_cells_around_the_start_have_one_metre():
    """The cell of the start ends at the start on two sides: rounding towards zero would make it 2 m wide."""
    bank = bank_of_one(room(), start=(3.0, 2.0), heading=0.0, goal=(1.0, 1.0))
    simulator = Navigation(1, "cpu", ExploreConfig(sensors="blind"), bank=bank)
    simulator.reset(0)

    def rewards(*actions):
        return [float(simulator.step(torch.tensor([action])).reward) for action in actions]

    assert rewards(*[FORWARD] * 4) == [0, 0, 0, 0.25]
    assert rewards(*[LEFT] * 18, *[FORWARD] * 4) == [0.0] * 22
    assert rewards(*[FORWARD] * 5) == [0.25, 0, 0, 0, 0.25]  # behind the start begins another cell, 1 m long


def test_baselines_of_exploration(small_bank):
    config = ExploreConfig(split="val", sensors="blind", max_episode_steps=150)
    cells = {
        name: play_baseline(EVALUATION, name, config, 12, num_envs=12, bank=small_bank)["cells"]
        for name in ("random", "forward", "oracle")
    }
    assert cells["oracle"] > 2 * cells["random"] and cells["random"] > cells["forward"]


def test_the_oracle_asks_its_guide_only_about_the_present_scenes(small_bank, monkeypatch):
    config = ExploreConfig(sensors="blind", max_episode_steps=5)
    simulator = Navigation(4, "cpu", config, bank=small_bank)
    asked, plain = [], Guide.distances

    def distances(guide, positions):
        asked.append(torch.equal(guide._scenes, simulator.scenes))
        return plain(guide, positions)

    monkeypatch.setattr(Guide, "distances", distances)
    play(simulator, ExploreOracle(simulator).act, list(range(2, 12)), [0] * 10)
    assert all(asked)


def test_a_map_is_large_enough_for_its_scenes():
    bank = SceneBank.of_scenes([room(), room(5.0, 4.0)], "small")
    simulator = Navigation(2, "cpu", ExploreConfig(sensors="blind"), bank=bank)
    simulator.reset(0)
    bank.retire(1)
    before = {name: values.clone() for name, values in bank.tensors.items()}
    with pytest.raises(UsageError, match="explore: a new scene is too large; allowed: up to 8 m across"):
        bank.replace(1, room(12.0, 9.0))
    assert all(torch.equal(values, before[name]) for name, values in bank.tensors.items())
    assert bank.retired.tolist() == [False, True] and not bank.changed
    simulator.reset(1)
    assert simulator.scenes_in_use() == {0}
