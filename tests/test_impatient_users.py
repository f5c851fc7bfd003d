"""What people do to a command line without thinking of it."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from paceline.cli import main as cli
from paceline.cli.options import value_of
from paceline.config import Config
from paceline.envs.factory import Factory
from paceline.errors import SimulatorError, UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.serial import SerialPool
from paceline.telemetry import console


class Closed(gymnasium.Env):
    """Its window is closed in the third step. Programs with pygame call sys.exit() then."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3:
            sys.exit()
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_a_simulator_that_exits_has_failed():
    """Otherwise the run would end with exit code 0 and without a word."""
    with SerialPool(Factory(make=lambda index: Closed()), PoolConfig(num_envs=1)) as pool:
        for _ in range(2):
            pool.send(np.zeros(1, np.int64), pool.recv(min_slots=None).slots)
        pool.send(np.zeros(1, np.int64), pool.recv(min_slots=None).slots)
        with pytest.raises(SimulatorError, match="SystemExit"):
            pool.recv(min_slots=None)


@pytest.mark.parametrize("error", [BrokenPipeError(), SystemExit(1)])
def test_nobody_has_to_read_what_is_printed(monkeypatch, error):
    """Ctrl-C in `paceline population ... | tee log` ends tee, too. The members have to save all the same."""

    class Gone:
        def print(self, *_: object, **__: object) -> None:
            raise error

    monkeypatch.setattr(console, "console", Gone)
    console.print_line("the members stop")


def test_the_home_folder_is_found_behind_an_equals_sign(monkeypatch, tmp_path):
    seen = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["paceline", "train", "--run-dir=~/runs", "--x.y=~", "--note=~other", "~/env.py"])
    monkeypatch.setattr(cli, "_run", seen.append)
    cli.main()
    assert seen == [["train", f"--run-dir={tmp_path}/runs", f"--x.y={tmp_path}", "--note=~other", "~/env.py"]]


@pytest.mark.parametrize(("name", "value"), [("threads", 0), ("threads", -1), ("seed", 2**70), ("seed", -1)])
def test_numbers_that_pytorch_cannot_take_are_refused(name, value):
    with pytest.raises(UsageError, match=f"{name} must be"):
        Config(**{name: value})


@pytest.mark.parametrize("name", ["seconds", "log_seconds"])
def test_endless_times_are_refused(name):
    with pytest.raises(UsageError, match=f"{name} is inf; allowed: a finite number"):
        Config(**{name: float("inf")})


def test_options_with_underscores_name_the_run_to_resume():
    """All other options may be written so."""
    assert value_of("--run-dir", ["--resume", "--run_dir", "x"]) == "x"
    assert value_of("--run-dir", ["--run_dir=y_z"]) == "y_z"
