"""Resuming: nothing is damaged by a wrong command, and what goes on is said."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import shutil
import threading
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from paceline.checkpoint import CheckpointFolder
from paceline.cli.train import main
from paceline.config import Config
from paceline.errors import UsageError
from paceline.resume import RunFinished

TINY = ["--steps", "128", "--rollout-steps", "16", "--pool.num-envs", "4", "--pool.kind", "serial", "--device", "cpu"]
TINY += ["--ppo.epochs", "1", "--ppo.minibatches", "1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert main(["cartpole", *TINY, "--run-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def cartpole(trained, tmp_path) -> Path:
    """A copy of a run of one test's own."""
    return Path(shutil.copytree(trained, tmp_path / "run", symlinks=True))


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["breakout", "--resume"], ["recipe cartpole", "breakout"]),
        (["--resume", "--policy.hidden", "32", "32"], ["policy.hidden (32, 32) instead of (64, 64)"]),
        (["--resume", "--system", "d4pg", "--env", "gym:Pendulum-v1"], ["system d4pg instead of ddppo"]),
        (["--resume", "--ppo.auxiliary.kind", "cpca"], ["ppo.auxiliary.kind cpca instead of none"]),
        (["--resume", "--env", "gym:Acrobot-v1", "--steps", "256"], ["gym:Acrobot-v1", "gym:CartPole-v1"]),
        (["--resume", "--from-checkpoint", "step_7"], ["step_7", "step_128"]),
    ],
)
def test_a_resume_that_cannot_be_changes_nothing(cartpole, arguments, words):
    before = contents(cartpole)
    with pytest.raises(Exception) as caught:
        main([*arguments, "--run-dir", str(cartpole)])
    assert getattr(caught.value, "exit_code", None) == 2, caught.value
    message = str(caught.value)
    assert "\n" not in message and all(word in message for word in words), message
    assert contents(cartpole) == before
    assert main(["--resume", "--run-dir", str(cartpole), "--steps", "192"]) == 0, "it still goes on"


def test_a_resume_may_change_what_weights_do_not_depend_on(cartpole):
    changes = ["--steps", "256", "--optimizer.learning-rate", "0.001", "--pool.num-envs", "8", "--system", "ver"]
    assert main(["--resume", "--run-dir", str(cartpole), *changes]) == 0
    config = Config.load(cartpole / "config.json")
    assert (config.steps, config.pool.num_envs, config.system) == (256, 8, "ver")
    assert CheckpointFolder(cartpole / "checkpoints").load().state["step"] == 256


def test_the_runs_own_recipe_resumes_with_the_runs_own_configuration(cartpole):
    assert main(["cartpole", "--resume", "--run-dir", str(cartpole), "--steps", "192"]) == 0
    assert Config.load(cartpole / "config.json").pool.num_envs == 4, "and not with the recipe's"


def test_a_resume_says_where_it_continues(cartpole, caplog):
    with caplog.at_level(logging.INFO):
        assert main(["--resume", "--run-dir", str(cartpole), "--steps", "192"]) == 0
    assert "continuing from step 128" in caplog.text and "step_128" in caplog.text


class Level(gym.Env):
    """A new level in every episode, drawn from the seed. Its observation is the level."""

    observation_space, action_space = gym.spaces.Box(0, 1, (1,)), gym.spaces.Discrete(2)
    shown: list[float] = []  # noqa: RUF012 - of all environments of a test

    def __init__(self, saved: bool = True) -> None:
        self._saved, self._lock = saved, None if saved else threading.Lock()

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._level, self._steps = self.np_random.random(1, np.float32), 0
        Level.shown.append(float(self._level[0]))
        return self._level, {}

    def step(self, action):
        self._steps += 1
        return self._level, 0.0, self._steps == 5, False, {}


@pytest.mark.parametrize(("saved", "changed"), [(False, []), (True, ["--pool.num-envs", "3"])])
def test_a_resumed_run_without_its_simulators_does_not_repeat_its_first_episodes(tmp_path, saved, changed):
    options = [*TINY, "--env", f"tests.integration.test_resume:Level?saved={str(saved).lower()}"]
    Level.shown.clear()
    assert main(["cartpole", *options, "--run-dir", str(tmp_path / "run")]) == 0
    first, Level.shown = set(Level.shown), []
    assert main(["--resume", "--run-dir", str(tmp_path / "run"), "--steps", "256", *changed]) == 0
    assert len(first) > 20 and len(Level.shown) > 20
    assert not first & set(Level.shown)


@pytest.mark.parametrize(
    ("limit", "option"), [([], "--steps"), (["--steps", "999", "--seconds", "0.001"], "--seconds")]
)
def test_a_finished_run_says_so_and_what_extends_it(cartpole, limit, option):
    before = contents(cartpole)
    with pytest.raises(RunFinished, match=f"is finished.*{option} extends it") as caught:
        main(["--resume", "--run-dir", str(cartpole), *limit])
    assert caught.value.exit_code == 0
    assert contents(cartpole) == before


def test_more_steps_of_a_run_whose_time_is_over_are_refused(cartpole):
    """A script must not take it for success."""
    config = Config.load(cartpole / "config.json")
    dataclasses.replace(config, seconds=0.001).save(cartpole / "config.json")
    with pytest.raises(UsageError, match=r"--steps 999 cannot be reached: .* of 0.001 seconds; .*--seconds None"):
        main(["--resume", "--run-dir", str(cartpole), "--steps", "999"])
    assert main(["--resume", "--run-dir", str(cartpole), "--steps", "192", "--seconds", "None"]) == 0


def test_more_minibatches_than_rows_are_refused(tmp_path):
    with pytest.raises(UsageError, match="at most 64"):
        main(["cartpole", *TINY, "--ppo.minibatches", "100000", "--run-dir", str(tmp_path)])


@pytest.mark.parametrize(
    "arguments",
    [
        ["cartpole", *TINY, "--rollout-steps", "100000000000"],
        ["pendulum", "--pool.kind", "serial", "--device", "cpu", "--replay.capacity", "1000000000000"],
    ],
)
def test_memory_that_is_not_there_is_one_line(tmp_path, arguments):
    with pytest.raises(UsageError, match=r"needs .* GiB.*has .* GiB left") as caught:
        main([*arguments, "--run-dir", str(tmp_path / "run")])
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
