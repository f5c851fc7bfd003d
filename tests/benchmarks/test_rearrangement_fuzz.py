"""The fuzz of rearrangement: a short one, and that it finds what is wrong."""

from __future__ import annotations

import pytest
import torch

from benchmarks import rearrangement_fuzz
from benchmarks.rearrangement_fuzz import Findings, Plan, fuzz
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.scenes.bank import load_or_generate_houses
from paceline.sims.rearrangement.simulator import Rearrangement
from tests.sims.shared_cache import shared_cache


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with shared_cache(tmp_path_factory):
        yield


@pytest.mark.parametrize("task", ["place", "tidy_house"])
def test_random_actions_break_nothing(task):
    found = fuzz(task, Plan(num_envs=32, scenes=2), steps=1000)
    assert found.steps >= 1000 and not found.problems, found.examples


def test_what_is_wrong_is_found():
    bank = load_or_generate_houses("small", num_scenes=1)
    simulator = Rearrangement(3, "cpu", "pick", RearrangementConfig(sensors="blind", scenes=1), bank=bank)
    simulator.reset(0)
    stream, found = simulator.stream, Findings()
    stream.state.objects[0, 0, 2] = -1.0
    stream.state.objects[1, 1, 0] = torch.nan
    stream.state.pose[2, :2] = -50.0
    rearrangement_fuzz._check_numbers(found, stream, {})
    rearrangement_fuzz._check_objects(found, simulator, stream)
    rearrangement_fuzz._check_robot(found, simulator, stream, torch.zeros(3, dtype=torch.bool))
    assert found.problems["objects not finite"] == 1
    assert found.problems["object below the floor"] == 1
    assert found.problems["robot outside of the house"] == 1
