"""The comparison of off-policy training loops."""

import numpy as np
import pytest
import torch

from benchmarks import control_speed
from benchmarks.cells import CellError
from benchmarks.control_speed import Plan, in_turns, measure, paceline_arguments, settings_of, show
from benchmarks.control_speed_cell import rates
from benchmarks.images import FRAMES, LENGTH, Images
from benchmarks.peers.control_loop import Settings, Transitions, last_observations
from benchmarks.peers.drqv2 import random_shift
from benchmarks.report import context
from paceline.errors import UsageError


def test_rates_are_those_after_the_warm_up():
    reports = [{"step": 8 * n, "updates": n, "seconds": s} for n, s in ((0, 1.0), (40, 5.0), (90, 7.0), (140, 10.0))]
    assert rates(reports, 5.0) == {"updates_per_second": 20.0, "steps_per_second": 160.0}
    assert rates(reports, 5.1) is None
    assert rates([{"step": 1, "seconds": 9.0}], 1.0) is None


def test_missing_package_leaves_an_empty_row(monkeypatch, capsys):
    def measure_one(workload, name, plan):
        if "Stable" in name:
            raise CellError("No module named 'stable_baselines3'\ntraceback")
        return {"updates_per_second": 30.0 if "Paceline" in name else 10.0, "steps_per_second": 80.0}

    monkeypatch.setattr(control_speed, "measure_one", measure_one)
    plan = Plan(systems=("Paceline, D4PG", "Stable-Baselines3, TD3", "TD3 as in CleanRL"), rounds=2)
    samples = in_turns("vectors", plan)
    assert capsys.readouterr().out.count("No module named 'stable_baselines3'") == 1
    assert show("vectors", samples, plan).rows == (
        ("Paceline, D4PG", "30", "80", "1.00"),
        ("Stable-Baselines3, TD3", "", "", ""),
        ("TD3 as in CleanRL", "10", "80", "3.00"),
    )


def test_workload_without_a_system_is_left_out(monkeypatch, capsys):
    rates = {"updates_per_second": 30.0, "steps_per_second": 80.0}
    monkeypatch.setattr(control_speed, "measure_one", lambda *_: rates)
    result = measure(Plan(systems=("Stable-Baselines3, TD3",), rounds=1), context())
    assert [table.name for table in result.tables] == ["vectors"]


def test_systems_that_no_workload_has_are_refused_at_the_start():
    with pytest.raises(UsageError, match=r"systems has \['PPO'\]; allowed: 'Paceline, D4PG', "):
        Plan(systems=("PPO",))
    with pytest.raises(UsageError, match="nothing to measure; .* 'Paceline, D4PG', 'DrQ-v2, plain PyTorch'$"):
        Plan(workloads=("images",), systems=("TD3 as in CleanRL",))


def test_paceline_learns_once_after_each_step_of_all_environments():
    plan = Plan(batch=64, device="cpu")
    arguments = paceline_arguments("vectors", settings_of("vectors", plan), "auto", plan)
    assert arguments[arguments.index("--limiter.samples-per-insert") + 1] == "8.0"


def test_images_stack_the_latest_frames():
    env = Images()
    obs, _ = env.reset(seed=1)
    assert all((obs[:3] == obs[3 * index : 3 * index + 3]).all() for index in range(FRAMES))
    next_obs, reward, terminated, truncated, _ = env.step(np.array([0.5], np.float32))
    assert (next_obs[:-3] == obs[3:]).all() and reward == 0.5 and not terminated and not truncated
    for _ in range(LENGTH - 1):
        truncated = env.step(np.array([0.5], np.float32))[3]
    assert truncated


def test_plain_replay_overwrites_the_oldest():
    replay = Transitions(3, Settings("", 2, 64, 8, "cpu", 1, 1.0, 1))
    replay.add(np.array([[0.0], [1.0]]), np.array([10.0, 11.0]))
    replay.add(np.array([[2.0], [3.0]]), np.array([12.0, 13.0]))
    obs, reward = replay.draw()
    assert replay.size == 3 and set(obs.flatten().tolist()) == {1.0, 2.0, 3.0}
    assert (obs.flatten() + 10 == reward).all()


def test_last_observation_of_an_episode_is_the_true_one():
    shown = np.zeros((2, 1))
    infos = {"_final_obs": np.array([False, True]), "final_obs": np.array([None, np.array([5.0])], object)}
    assert last_observations(shown, infos).tolist() == [[0.0], [5.0]]
    assert last_observations(shown, {}) is shown


def test_random_shift_keeps_the_shape_and_repeats_the_border():
    flat = torch.full((4, 9, 84, 84), 7, dtype=torch.uint8)
    assert (random_shift(flat) == 7).all()
    ramp = torch.arange(84.0).expand(8, 1, 84, 84)
    moved = random_shift(ramp)[:, 0, 0]
    assert moved.shape == (8, 84) and ((moved[:, 40] - 40).abs() <= 4).all()
