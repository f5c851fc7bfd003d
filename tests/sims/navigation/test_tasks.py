"""What holds for every task: streams, saved states, ids, Gymnasium environments, training and evaluation."""

import functools
import io
import json
import sys
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from paceline.cli import main as cli
from paceline.config import Config
from paceline.envs import resolve
from paceline.envs.registry import FAMILIES
from paceline.errors import UsageError
from paceline.evaluation import charts
from paceline.evaluation.evaluators import EVALUATORS, evaluator_of
from paceline.evaluation.report import write_report
from paceline.learner.config import PPOConfig
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool import make_pool
from paceline.pool.config import PoolConfig
from paceline.session import train
from paceline.sims.navigation.evaluation import report_views
from paceline.sims.navigation.evaluation.policy_episodes import env_config
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.navigation.tasks.table import TASKS
from tests.sims.navigation.rooms import random_steps

NOISY = {"image_noise": 0.05, "actuation_noise": 0.2}

every_task = pytest.mark.parametrize("task", TASKS)
every_other_task = pytest.mark.parametrize("task", [task for task in TASKS if task != "pointnav"])
"""PointNav has these tests in files of its own."""


def make(task, num_envs, bank, first_stream=0, **options):
    config = TASKS[task].config(**{"resolution": 8, "max_episode_steps": 12, **options})
    return Navigation(num_envs, "cpu", config, bank=bank, first_stream=first_stream)


def test_every_task_has_a_family_and_an_evaluator():
    for task in TASKS:
        assert FAMILIES[task].example.startswith(f"{task}:") and task in EVALUATORS
        evaluator = evaluator_of(task)
        assert {"random", "oracle"} <= set(evaluator.baselines)
        assert set(evaluator.rates) <= set(TASKS[task].load().measure_names)


@every_other_task
@pytest.mark.parametrize("options", [{}, NOISY])
def test_streams_do_not_depend_on_the_batch(task, options, small_bank):
    together = make(task, 3, small_bank, **options)
    singles = [make(task, 1, small_bank, i, **options) for i in range(3)]
    firsts = together.reset(11)
    for i, single in enumerate(singles):
        for name, values in single.reset(11).items():
            assert torch.equal(values[0], firsts[name][i]), name
    num_ends = 0
    for step, *others in zip(random_steps(together, 36), *(random_steps(one, 36) for one in singles), strict=True):
        for i, single in enumerate(others):
            assert torch.equal(single.reward[0], step.reward[i])
            for kind in ("obs", "final_obs"):
                for name, values in getattr(single, kind).items():
                    assert torch.equal(values[0], getattr(step, kind)[name][i]), name
            for name, values in singles[i].last_measures.items():
                assert torch.equal(values[0], together.last_measures[name][i]), name
        num_ends += int((step.terminated | step.truncated).sum())
    assert num_ends > 6


@every_other_task
def test_a_saved_state_continues_exactly(task, small_bank):
    simulator = make(task, 5, small_bank, **NOISY)
    simulator.reset(7)
    list(random_steps(simulator, 20, seed=1))
    buffer = io.BytesIO()
    torch.save(simulator.state_dict(), buffer)
    want = list(random_steps(simulator, 20, seed=2))
    buffer.seek(0)
    other = make(task, 5, small_bank, **NOISY)
    other.reset(1)
    list(random_steps(other, 9, seed=4))
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for got, step in zip(random_steps(other, 20, seed=2), want, strict=True):
        assert torch.equal(got.reward, step.reward)
        for kind in ("obs", "final_obs"):
            for name, values in getattr(step, kind).items():
                assert torch.equal(getattr(got, kind)[name], values), name


@every_task
def test_observations_and_measures_are_as_declared(task, small_bank):
    simulator = make(task, 3, small_bank)
    simulator.reset(0)
    for step in random_steps(simulator, 35):
        assert set(simulator.measure_names) <= set(simulator.last_measures)
        for leaves in (step.obs, step.final_obs):
            for stream in range(3):
                sample = {name: values[stream].numpy() for name, values in leaves.items()}
                assert simulator.observation_space.contains(sample)
        same = ~(step.terminated | step.truncated)
        for name in step.obs:
            assert torch.equal(step.obs[name][same], step.final_obs[name][same])


@every_other_task
def test_gymnasium_s_checker_finds_nothing(task):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = {"scenes": 4, "resolution": 8, "render_mode": "rgb_array"}
        env = gymnasium.make(TASKS[task].gym_id, disable_env_checker=True, **options)
        check_env(env.unwrapped, skip_render_check=False)


@every_task
def test_single_environments_announce_their_measures(task):
    env = f"{task}:small?resolution=8&scenes=4&max_episode_steps=3"
    with make_pool(env, PoolConfig(kind="serial", num_envs=1), seed=1) as pool:
        assert pool.spec.measures == TASKS[task].load().measure_names
        for _ in range(4):
            pool.send(np.ones(1, np.int64), pool.recv(min_slots=None).slots)
        (episode,) = pool.take_episodes()
        assert set(pool.spec.measures) <= set(episode.info)


@every_task
@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (":tiny", "tier 'tiny'.*allowed: small, full"),
        ("?sensors=lidar", "sensors is 'lidar'; allowed: depth, rgb"),
        ("?resolutoin=64", "'resolutoin'.*did you mean 'resolution'"),
        ("?max_episode_steps=0", "max_episode_steps is 0; allowed: 1 to 1e"),
    ],
)
def test_bad_ids_name_the_task_and_what_is_allowed(task, rest, message):
    with pytest.raises(UsageError, match=message) as raised:
        resolve(task + rest)
    assert task in str(raised.value) and "\n" not in str(raised.value)


def test_options_of_other_tasks_are_refused():
    with pytest.raises(UsageError, match="option 'gps' of 'flee\\?gps=false' does not exist; allowed: tier, split"):
        resolve("flee?gps=false")


def tiny(task, system):
    return Config(
        env=f"{task}:small?resolution=8&scenes=4&max_episode_steps=20",
        system=system,
        steps=512,
        rollout_steps=16,
        device="cpu",
        threads=1,
        pool=PoolConfig(num_envs=8),
        policy=PolicyConfig(encoder="patches", encoder_size=8, hidden=(8,), core=CoreConfig(kind="lstm", hidden=8)),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The number of steps and the folder of a run of a task and a system."""

    @functools.cache
    def of(task, system):
        folder = tmp_path_factory.mktemp("runs") / f"{task}-{system}"
        return train(tiny(task, system), folder).step, folder

    return of


@every_other_task
@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_every_ppo_system_trains_on_it(task, system, trained):
    step, folder = trained(task, system)
    assert step >= 512
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert {f"episode_{name}" for name in TASKS[task].load().measure_names} <= set(line)


@every_other_task
def test_the_command_evaluates_it(task, tmp_path, monkeypatch, capsys):
    env = f"{task}:small?scenes=4&max_episode_steps=20"
    words = ["paceline", "eval", "--agent", "random", "--env", env, "--split", "val", "--episodes", "6"]
    monkeypatch.setattr(sys, "argv", [*words, "--json"])
    cli.main()
    result = json.loads(capsys.readouterr().out)
    assert (env_config(result["env"]), result["split"], result["episodes"]) == (env_config(env, "val"), "val", 6)
    evaluator = evaluator_of(task)
    for name in set(evaluator.labels):
        low, high = result[f"{name}_ci95"]
        assert low <= result[name] <= high
    monkeypatch.setattr(sys, "argv", words)
    cli.main()
    assert all(name.replace("_", " ") in capsys.readouterr().out for name in list(evaluator.labels)[:1])


@every_other_task
def test_a_report_shows_its_measures_and_maps(task, trained, monkeypatch):
    monkeypatch.setattr(report_views, "NUM_ANIMATED", 3)
    monkeypatch.setattr(report_views, "NUM_FRAMES", 2)
    # Its training is drawn as that of any run: tests/evaluation/test_report.py draws it.
    monkeypatch.setattr(charts, "curves", lambda *_, **__: "data:image/svg+xml,")
    text = write_report(trained(task, "ddppo")[1], evaluate_episodes=6).read_text()
    assert text.count('alt="Map of episode') >= 6, "chosen episodes, and failures if the task has them"
    for label in evaluator_of(task).labels.values():
        assert label in text
