"""`paceline train` as a user meets it: files, exit codes, resuming, several ranks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from paceline.checkpoint import CheckpointFolder
from paceline.cli import train
from paceline.config import Config
from tests.forks import run_paceline

TINY = ["--steps", "512", "--rollout-steps", "16", "--pool.num-envs", "4", "--pool.kind", "serial", "--device", "cpu"]
TINY += ["--ppo.epochs", "1", "--ppo.minibatches", "1"]


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "paceline", "train", *map(str, arguments)]


def paceline_train(*arguments: object, timeout: float = 120, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return run_paceline("train", *arguments, timeout=timeout, cwd=cwd)


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if is_alive(pid)]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def wait_for(condition, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.1)


@contextlib.contextmanager
def two_ranks(folder: Path, *options: str, report: bool = False) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """A command that trains for ever, and the processes of its ranks in order, once they collect.

    `report`: once they have written their first report, which is 2 s later.
    """
    options = (*TINY, "--steps", "100000000", "--ranks", "2", "--run-dir", str(folder), *options)
    options = (*options, "--log-seconds", "0.1", "--env", "tests.integration.slow:unhurried")
    metrics, errors = folder / "metrics.jsonl", folder / "errors.txt"

    def trains() -> bool:
        return bool(metrics.exists() and metrics.read_text()) if report else "collecting" in errors.read_text()

    with errors.open("w") as stderr, subprocess.Popen(command("cartpole", *options), stderr=stderr) as run:
        started: list[int] = []
        try:
            wait_for(lambda: run.poll() is not None or trains())
            assert run.poll() is None, errors.read_text()
            children = psutil.Process(run.pid).children(recursive=True)
            started = [child.pid for child in sorted(children, key=lambda child: int(child.environ()["RANK"]))]
            assert len(started) == 2
            yield run, started
        finally:
            run.kill()
            for pid in alive(started):
                os.kill(pid, signal.SIGKILL)


def test_a_run_folder_has_everything(tmp_path):
    done = paceline_train("cartpole", *TINY, "--run-dir", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "512 steps" in done.stderr and str(tmp_path) in done.stderr.replace("\n", "")
    assert done.stdout == "", "quiet when not a terminal"
    config = Config.load(tmp_path / "run" / "config.json")
    assert config.steps == 512 and config.pool.num_envs == 4
    assert json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 512
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").steps() == [512]


def test_a_run_is_not_overwritten_but_resumed(tmp_path):
    assert paceline_train("cartpole", *TINY, "--run-dir", tmp_path).returncode == 0
    again = paceline_train("cartpole", *TINY, "--run-dir", tmp_path)
    assert again.returncode == 2 and "--resume continues it" in again.stderr.replace("\n", " ")
    more = paceline_train("--resume", "--run-dir", tmp_path, "--steps", "768")
    assert more.returncode == 0, more.stderr
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == 768


def test_a_configuration_file_is_a_run(tmp_path):
    assert paceline_train("cartpole", *TINY, "--seed", "7", "--run-dir", tmp_path / "a").returncode == 0
    done = paceline_train("--config", tmp_path / "a" / "config.json", "--run-dir", tmp_path / "b")
    assert done.returncode == 0, done.stderr
    assert Config.load(tmp_path / "b" / "config.json") == Config.load(tmp_path / "a" / "config.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to train"),
        (["cartpol"], "did you mean 'cartpole'"),
        (["cartpole", "--env", "gym:CartPole-v99"], "did you mean"),
        (["cartpole", "--ppo.clip", "-1"], "ppo.clip must be above 0"),
        (["cartpole", "--pool.kind", "threads"], "serial"),
        (["cartpole", "--no-such-option", "1"], "no-such-option"),
        (["cartpole", "--ver.overlap"], "--ver.overlap has no effect under ddppo; it is an option of ver"),
        (["cartpole", "--ver.no-variable"], "--ver.no-variable has no effect under ddppo; it is an option of ver"),
        (
            ["pendulum", "--rollout_steps=8"],
            "--rollout_steps has no effect under d4pg; it is an option of ddppo, ver, appo",
        ),
        (["cartpole", "--replay.capacity", "9", "--system", "ver"], "no effect under ver; it is an option of d4pg"),
        (["pendulum", "--system=ver", "--d4pg.steps", "2"], "no effect under ver; it is an option of d4pg"),
        (["cartpole", "--system", "vers"], "did you mean 'ver'"),
        (["cartpole", "--config", "/no/such/file.json"], "--config cannot be combined with a recipe"),
        (["--config", "/no/such/file.json"], "cannot be read"),
        (["--resume", "--run-dir", "/no/such/run"], "cannot be read"),
        (["cartpole", "--deterministic", "--pool.kind", "process"], "deterministic runs need the serial pool"),
        (["pendulum", "--steps", "500"], "learning begins after limiter.minimum steps"),
        (["cartpole", *TINY, "--ppo.targets", "vtrace", "--ppo.minibatches", "9"], "there are only 4 streams"),
    ],
)
def test_bad_usage_exits_2_and_loses_nothing(arguments, message, tmp_path):
    done = paceline_train(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.name != "runs"], "what did not begin leaves nothing behind"


@pytest.mark.parametrize("where", [["--system", "ver", *TINY], [*TINY, "--system=ver"]])
def test_another_system_by_one_word(tmp_path, where):
    """The recipe has settings of appo, which ver does not read."""
    own = ["doom_basic", "--env", "gym:CartPole-v1", "--policy.core.kind", "none", "--ver.no-importance-weights"]
    done = paceline_train(*own, *where, "--run-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["system"] == "ver" and written["ver"]["importance_weights"] is False
    assert "appo" not in written and "replay" not in written


def test_help_has_the_options_of_the_system_alone():
    appo, ddppo = (paceline_train("doom_basic", *system, "--help-all").stdout for system in ([], ["--system", "ddppo"]))
    for option in ("--appo.batch", "--batching.minimum"):
        assert option in appo and option not in ddppo
    for option in ("--ver.overlap", "--replay.capacity", "--recipe"):
        assert option not in appo and option not in ddppo
    assert "--ppo.clip" in appo and "--ppo.clip" in ddppo and "default: 2048" in appo


def test_a_failing_environment_ends_the_run_with_one_clear_message(tmp_path):
    done = paceline_train(
        "cartpole", *TINY, "--env", "tests.integration.test_train_command:broken", "--run-dir", tmp_path
    )
    assert done.returncode == 1
    assert "slot 0" in done.stderr and "ZeroDivisionError" in done.stderr


def broken():
    import gymnasium

    class Broken(gymnasium.Wrapper):
        def step(self, action):
            return 1 / 0

    return Broken(gymnasium.make("CartPole-v1"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_runs_save_and_exit_130(tmp_path, number):
    options = [*TINY, "--steps", "100000000", "--pool.kind", "process", "--pool.workers", "2", "--run-dir", tmp_path]
    options += ["--env", "tests.integration.slow:unhurried"]
    run = subprocess.Popen(command("cartpole", *options), stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "metrics.jsonl"
    wait_for(lambda: run.poll() is not None or (metrics.exists() and metrics.read_text()))
    assert run.poll() is None
    children = [child.pid for child in psutil.Process(run.pid).children(recursive=True)]
    run.send_signal(number)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 130, errors
    saved = CheckpointFolder(tmp_path / "checkpoints").load()
    assert saved.state["step"] > 0
    assert not alive(children)


def test_two_ranks_by_one_option(tmp_path):
    done = paceline_train("cartpole", *TINY, "--ranks", "2", "--run-dir", tmp_path, timeout=180)
    assert done.returncode == 0, done.stderr
    saved = CheckpointFolder(tmp_path / "checkpoints").load()
    assert saved.state["step"] == 512 and len(saved.state["ranks"]) == 2


def test_interrupted_ranks_save_and_end_without_a_traceback(tmp_path):
    with two_ranks(tmp_path, report=True) as (run, started):
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=300) == 130
        wait_for(lambda: not alive(started))
    errors = (tmp_path / "errors.txt").read_text()
    assert "Traceback" not in errors and "stopping; a checkpoint will be saved" in errors
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] > 0


def test_a_signal_to_every_process_is_one_and_loses_nothing(tmp_path):
    """As a service manager sends it."""
    with two_ranks(tmp_path, report=True) as (run, started):
        for pid in (run.pid, *started):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert run.wait(timeout=300) == 130
        wait_for(lambda: not alive(started))
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] > 0


def test_ranks_that_do_not_hear_are_killed_by_the_third_signal(tmp_path):
    with two_ranks(tmp_path) as (run, started):
        for pid in started:
            os.kill(pid, signal.SIGSTOP)
        for _ in range(3):
            run.send_signal(signal.SIGINT)
            time.sleep(1.0)  # two at a time would count as one
        assert run.wait(timeout=300) == 130
        wait_for(lambda: not alive(started))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_ranks_do_not_outlive_the_command_that_started_them(tmp_path):
    with two_ranks(tmp_path) as (run, started):
        os.kill(run.pid, signal.SIGKILL)
        wait_for(lambda: not alive(started))


def test_a_killed_simulator_costs_its_episode_only(tmp_path):
    """kill -9 of a worker in the middle of a run: it goes on, and says so."""
    options = [*TINY, "--steps", "4000", "--pool.kind", "process", "--pool.workers", "2", "--run-dir", tmp_path]
    options += ["--checkpoint.seconds", "0.1", "--env", "tests.integration.slow:unhurried"]
    run = subprocess.Popen(command("cartpole", *options), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: run.poll() is not None or (tmp_path / "checkpoints" / "latest").exists())
    assert run.poll() is None, f"the run ended before a worker was killed: {run.stderr.read()}"
    workers = [c for c in psutil.Process(run.pid).children() if "paceline.pool.worker" in " ".join(c.cmdline())]
    assert workers, "the run has no workers"
    os.kill(workers[0].pid, signal.SIGKILL)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    assert "SIGKILL" in errors and "replacing a simulator" in errors
    assert CheckpointFolder(Path(tmp_path) / "checkpoints").load().state["step"] >= 4000


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["cartpole"], "cartpole-ddppo-"),
        (["cartpole", "--env", "gym:Acrobot-v1"], "cartpole-gym-Acrobot-v1-ddppo-"),
        (["--env", "gym:Acrobot-v1"], "gym-Acrobot-v1-ddppo-"),
    ],
)
def test_a_new_folder_is_named_after_the_recipe_and_another_environment(monkeypatch, options, name):
    class Started(Exception):
        pass

    def start(config, folder, **_):
        raise Started(folder.name)

    monkeypatch.setattr("paceline.session.train", start)
    with pytest.raises(Started, match=name):
        train.main(options)
