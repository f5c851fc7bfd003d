"""`paceline population` as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from paceline.checkpoint import CheckpointFolder
from paceline.cli.population import main
from paceline.config import Config
from paceline.errors import UsageError
from paceline.population.exchange import ExchangeFolder
from paceline.population.history import read_events
from tests.forks import run_paceline
from tests.integration.test_train_command import TINY, alive, wait_for

MEMBERS = ("member_0", "member_1")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "paceline", "population", *map(str, arguments)]


def processes_of(population: subprocess.Popen, name: str) -> list[int]:
    """The processes that train a member."""
    found = []
    for child in psutil.Process(population.pid).children():
        try:
            found += [child.pid] if any(argument.endswith(name) for argument in child.cmdline()) else []
        except psutil.Error:
            continue
    return found


def steps(folder: Path) -> dict[str, int]:
    return {name: result.step for name, result in ExchangeFolder(folder).results().items()}


def test_a_population_survives_the_loss_of_a_member(tmp_path):
    """It comes back from its checkpoint and goes on. Ctrl-C saves all, and --resume continues all."""
    folder = tmp_path / "population"
    options = [*TINY, "--steps", 100_000_000, "--pbt.every", 256, "--checkpoint.seconds", 0.5, "--members", 2]
    options += ["--env", "tests.integration.slow:unhurried"]
    started: list[int] = []
    with subprocess.Popen(command("cartpole", *options, "--run-dir", folder), stderr=subprocess.DEVNULL) as run:
        try:
            wait_for(lambda: len(steps(folder)) == 2 and all((folder / m / "checkpoints").exists() for m in MEMBERS))
            started += [*processes_of(run, MEMBERS[0]), *processes_of(run, MEMBERS[1])]
            victim = started[1]
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: victim not in processes_of(run, MEMBERS[1]))
            before = steps(folder)
            wait_for(lambda: all(step > before[name] for name, step in steps(folder).items()))
            started += processes_of(run, MEMBERS[1])
            assert len(set(started)) == 3 and started[0] in processes_of(run, MEMBERS[0])
            run.send_signal(signal.SIGINT)
            assert run.wait(300) == 130
        finally:
            run.kill()
            for pid in alive(started):
                os.kill(pid, signal.SIGKILL)
    configs = [Config.load(folder / name / "config.json") for name in MEMBERS]
    assert configs[0].seed != configs[1].seed and {config.steps for config in configs} == {100_000_000}
    assert {event.change.member for event in read_events([folder / name for name in MEMBERS])} == set(MEMBERS)
    saved = {name: CheckpointFolder(folder / name / "checkpoints").load().state["step"] for name in MEMBERS}
    end = max(saved.values()) + 256
    done = run_paceline("population", "--resume", "--run-dir", folder, "--steps", end)
    assert done.returncode == 0, done.stderr
    assert "member_0 finished" in done.stderr and "member_1 finished" in done.stderr
    assert all(step >= end for step in steps(folder).values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cartpole"], "--pbt.every"),
        (["cartpole", "--pbt.every", "5", "--members", "0"], "--members must be at least 1"),
        (["cartpole", "--pbt.every", "5", "--pbt.tuned", "ppo.clipp"], "did you mean 'ppo.clip'"),
        (["--resume", "--run-dir", "."], "config.json"),
        ([], "paceline population RECIPE"),
    ],
)
def test_bad_input_is_refused_before_anything_starts(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        main(arguments)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_a_population_is_not_overwritten(tmp_path):
    (tmp_path / "members.json").write_text(json.dumps({"members": 2}))
    with pytest.raises(UsageError, match="--resume"):
        main(["cartpole", "--pbt.every", "5", "--run-dir", str(tmp_path)])
