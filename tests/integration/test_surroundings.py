"""A run keeps its folder, its signals and its terminal, whatever simulators and users do to them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import gymnasium
import pytest

from paceline.callbacks import Callback
from paceline.checkpoint import CheckpointFolder
from paceline.cli import population as population_command
from paceline.config import CheckpointConfig, Config
from paceline.errors import PacelineError, UsageError
from paceline.pool.config import PoolConfig
from paceline.population.config import PBTConfig
from paceline.population.member import RunMember, train_member
from paceline.run import Run
from paceline.run_folder import open_run_folder
from paceline.session import Session, train
from paceline.signals import noting_new_handlers
from tests.integration.careless_env import Careless
from tests.integration.test_session import config_of
from tests.integration.test_train_command import TINY, command, paceline_train, wait_for
from tests.integration.test_training import tiny

CARELESS = "tests.integration.careless_env:Careless"


def careless(harm: str, when: str = "make", **changes) -> Config:
    return dataclasses.replace(tiny("none", deterministic=False), env=f"{CARELESS}?harm={harm}&when={when}", **changes)


@pytest.mark.parametrize("system", ["ddppo", "d4pg"])
def test_a_moved_run_folder_is_not_made_again(tmp_path, system):
    """Its place would hold a checkpoint without a configuration, which nothing can continue."""
    config, folder, moved = config_of(system), tmp_path / "run", tmp_path / "moved"

    def train_and_move() -> None:
        with Session(config, folder) as session:
            session.run(until=config.steps // 4)
            session._saver.save()
            folder.rename(moved)
            session.run(until=config.steps // 2)

    with pytest.raises(PacelineError, match=rf"{folder} was moved or deleted while the run was training"):
        train_and_move()
    assert not folder.exists()
    assert train(config, moved, resume="latest").step >= config.steps


@pytest.mark.parametrize("when", ["make", "reset", "step"])
def test_a_simulator_may_change_the_working_directory(tmp_path, monkeypatch, when):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    config = careless("leaves", when)
    config = dataclasses.replace(config, env=f"{config.env}&folder={tmp_path / 'elsewhere'}")
    with Session(config, Path("run")) as session:
        session.run()
    assert Path.cwd() == tmp_path / "elsewhere" and list((tmp_path / "elsewhere").iterdir()) == []
    assert CheckpointFolder(tmp_path / "run" / "checkpoints").load().state["step"] >= config.steps
    assert (tmp_path / "run" / "config.json").exists() and (tmp_path / "run" / "metrics.jsonl").exists()


def deaf_batch(num_envs: int, device: str, when: str = "make"):
    """A batched simulator."""
    return gymnasium.vector.SyncVectorEnv([lambda: Careless("deaf", when)] * num_envs)


@pytest.mark.parametrize("when", ["make", "reset", "step"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("system", ["ddppo", "ver", "appo", "batched"])
def test_a_simulator_cannot_take_signals_away(tmp_path, monkeypatch, when, number, system):
    config = careless("deaf", when, steps=1_000_000)
    if system == "batched":
        config = dataclasses.replace(config, env=f"{__name__}:deaf_batch?when={when}", pool=PoolConfig(num_envs=4))
    else:
        config = dataclasses.replace(config, system=system)
    monkeypatch.setattr("paceline.stop.KEEP_SECONDS", 0.0)
    rounds = []

    def stop_soon(self, *arguments) -> None:
        rounds.append(1)
        if len(rounds) == 3:
            os.kill(os.getpid(), number)
        plain(self, *arguments)

    plain = Run.report
    monkeypatch.setattr(Run, "report", stop_soon)
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run = train(config, tmp_path)
    assert run.interrupted and 0 < run.step < config.steps
    assert before == [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


class Handles(Callback):
    """Installs a handler of SIGTERM after the first update, and sends the signal after the fourth."""

    def __init__(self) -> None:
        self.updates, self.received = 0, []

    def on_update(self, session) -> None:
        self.updates += 1
        if self.updates == 1:
            signal.signal(signal.SIGTERM, self._receive)
        if self.updates == 4:
            signal.raise_signal(signal.SIGTERM)

    def _receive(self, number, frame) -> None:
        self.received.append(number)


@pytest.mark.parametrize("thief", [None, "simulator"])
def test_a_callback_may_install_a_handler(tmp_path, monkeypatch, thief):
    """It stays until the session closes, also if a simulator installs another one."""
    monkeypatch.setattr("paceline.stop.KEEP_SECONDS", 0.0)
    callback, before, plain = Handles(), signal.getsignal(signal.SIGTERM), Run.report

    def report(run, *arguments) -> None:
        if thief and callback.updates == 2:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        plain(run, *arguments)

    monkeypatch.setattr(Run, "report", report)
    config = tiny("none")
    with Session(config, tmp_path, callbacks=[callback]) as session:
        session.run()
    assert callback.received == [signal.SIGTERM] and session.step >= config.steps
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_handler_that_appears_while_a_callback_runs_in_another_thread_is_none_of_its_own():
    noted: dict = {}

    def call() -> None:
        with noting_new_handlers(noted):
            entered.set()
            left.wait(10)

    entered, left = threading.Event(), threading.Event()
    thread = threading.Thread(target=call)
    before = signal.getsignal(signal.SIGTERM)
    thread.start()
    entered.wait(10)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    left.set()
    thread.join()
    signal.signal(signal.SIGTERM, before)
    assert noted == {}


def test_a_signal_between_two_rounds_of_a_member_loses_nothing(tmp_path, monkeypatch):
    """It must not raise an exception there: with several ranks nothing is saved after one."""
    plain, raised = RunMember._take_part, []

    def interrupted(self) -> None:
        signal.raise_signal(signal.SIGINT)
        raised.append(self._session.step)
        plain(self)

    monkeypatch.setattr(RunMember, "_take_part", interrupted)
    config = tiny("none", pbt=PBTConfig(every=128), steps=100_000)
    run = train_member(config, tmp_path / "member", tmp_path)
    assert run.interrupted and len(raised) == 1
    assert CheckpointFolder(tmp_path / "member" / "checkpoints").load().state["step"] == raised[0]


def folder_with(kind: str, folder: Path) -> Path:
    """A folder that holds a run, a population or a sweep."""
    files = {
        "run": "checkpoints/latest",
        "population": "members.json",
        "members": "exchange/a/b",
        "sweep": "sweep.json",
    }
    path = folder / files[kind]
    path.parent.mkdir(parents=True)
    path.write_text("step_1\n")
    (folder / "config.json").write_text("theirs")
    return folder


@pytest.mark.parametrize("kind", ["run", "population", "members", "sweep"])
@pytest.mark.parametrize("what", ["train", "population"])
def test_a_folder_that_holds_something_is_left_alone(tmp_path, kind, what):
    folder = folder_with(kind, tmp_path / "folder")
    named = "population" if kind == "members" else kind
    arguments = ["cartpole", *TINY, "--run-dir", str(folder)]
    begin = {
        "train": lambda: train(tiny("none"), folder),
        "population": lambda: population_command.main([*arguments, "--pbt.every", "128"]),
    }[what]
    with pytest.raises(UsageError, match=f"folder holds a {named} already; .* continues it, another"):
        begin()
    assert (folder / "config.json").read_text() == "theirs"


def test_a_population_is_locked_while_it_trains(tmp_path):
    folder = tmp_path / "folder"
    with open_run_folder(folder), pytest.raises(UsageError, match="folder is in use by another run"):
        population_command.main(["cartpole", *TINY, "--pbt.every", "128", "--run-dir", str(folder)])
    assert list(folder.iterdir()) == []


def test_a_run_is_not_resumed_as_a_population(tmp_path):
    train(tiny("none"), tmp_path)
    before = (tmp_path / "config.json").read_text()
    with pytest.raises(UsageError, match="is not the folder of a population"):
        population_command.main(["--resume", "--members", "2", "--pbt.every", "128", "--run-dir", str(tmp_path)])
    assert (tmp_path / "config.json").read_text() == before


@pytest.mark.parametrize("pool", ["serial", "process"])
def test_prints_of_simulators_are_not_in_the_json(tmp_path, pool):
    """Neither those of this process, nor of its workers, nor of compiled code."""
    train(careless("", pool=PoolConfig(num_envs=2, kind=pool, workers=1)), tmp_path)
    options = ["--json", "--episodes", "4", "--env", f"{CARELESS}?harm=prints&when=reset"]
    arguments = [sys.executable, "-m", "paceline", "eval", tmp_path, *options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["episodes"] >= 4
    assert "hello\n" in done.stderr
    assert "hello from C\n" in done.stderr or pool == "process", "a worker ends without writing out what C buffers"


def test_a_closed_terminal_stops_the_run_with_a_checkpoint(tmp_path):
    options = [*TINY, "--steps", "100000000", "--run-dir", tmp_path, "--env", "tests.integration.slow:unhurried"]
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also where the tests run under nohup
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # it becomes the controlling terminal

    run = subprocess.Popen(
        command("cartpole", *options),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    metrics = tmp_path / "metrics.jsonl"

    def has_reported() -> bool:
        with contextlib.suppress(BlockingIOError):
            os.read(ours, 65536)
        assert run.poll() is None
        return metrics.exists() and metrics.read_text() != ""

    wait_for(has_reported)
    os.close(ours)
    assert run.wait(300) == 130
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] > 0


def test_forced_colours_do_not_animate_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    done = paceline_train("cartpole", *TINY, "--run-dir", tmp_path / "run")
    assert done.returncode == 0 and "\x1b[?25l" not in done.stderr and "run folder" in done.stderr


def test_a_replaced_checkpoint_is_not_damaged(tmp_path, monkeypatch, caplog):
    """A run that trains deletes its last checkpoint after it has written the next one."""
    folder, config = tmp_path / "run", tiny("none", checkpoint=CheckpointConfig(keep=1))
    with Session(config, folder) as session:
        session.run(until=config.steps // 2)
        session._saver.save()
        first, plain = session.step, CheckpointFolder._verify

        def while_training(self, path):
            if path.name == f"step_{first}":
                session.run()
            return plain(self, path)

        monkeypatch.setattr(CheckpointFolder, "_verify", while_training)
        found = CheckpointFolder(folder / "checkpoints").load()
    assert found.state["step"] == session.step > first
    assert not [record for record in caplog.records if "damaged" in record.getMessage()]
