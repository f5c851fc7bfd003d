"""A run stops soon after the request, in every system and pool, with a checkpoint that resumes."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.collect.sampler import Sampler
from paceline.config import CheckpointConfig, Config
from paceline.distributed.config import GroupConfig
from paceline.distributed.runtime import Group
from paceline.errors import SimulatorError, SimulatorFailure
from paceline.experience.config import LimiterConfig
from paceline.learner.config import D4PGConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.learner.replay_updates import ReplayUpdates
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from paceline.run import Run
from paceline.session import train
from paceline.stop import Stop
from paceline.telemetry.phases import Phases
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, tiny, weights

STEP_SECONDS = 0.1
BOUND = 30.0
"""Seconds: 5 are promised, with a simulator step and a mini-batch. The rest is for a busy machine."""


def slow(system: str, pool: str, seconds: float = STEP_SECONDS, **changes) -> Config:
    """An iteration of eight such simulators in two processes takes 51 s."""
    if system == "d4pg":
        kind, own = "&continuous=true", {"limiter": LimiterConfig(minimum=16), "d4pg": D4PGConfig(batch=8)}
    else:
        kind, own = "", {"rollout_steps": 128, "policy": PolicyConfig(hidden=(8,))}
    return dataclasses.replace(
        Config(
            env=f"tests.integration.slow:Slow?seconds={seconds}{kind}",
            system=system,
            steps=100_000,
            device="cpu",
            threads=1,
            pool=PoolConfig(num_envs=8, kind=pool, workers=2, nice=0),
            **own,
        ),
        **changes,
    )


class Asking:
    """Sends SIGTERM to this process as soon as a run is in `phase`, and measures the time since then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, phase: str) -> None:
        self._reached, self.asked_at = threading.Event(), 0.0
        plain = Phases.show

        def show(phases: Phases, name: str, done: int, total: int, unit: str = "") -> None:
            plain(phases, name, done, total, unit)
            if name == phase and done > 0:
                self._reached.set()

        monkeypatch.setattr(Phases, "show", show)
        threading.Thread(target=self._ask, daemon=True).start()

    def _ask(self) -> None:
        assert self._reached.wait(300)
        self.asked_at = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)

    @property
    def seconds(self) -> float:
        assert self.asked_at > 0
        return time.monotonic() - self.asked_at


def goes_on(config: Config, folder: Path, **changes) -> Run:
    """Resume the run with fast simulators."""
    quick = config.env.replace(f"seconds={STEP_SECONDS}", "seconds=0")
    return train(dataclasses.replace(config, env=quick, **changes), folder, resume="latest")


@pytest.mark.parametrize(
    ("system", "pool"), [("ddppo", "serial"), ("ddppo", "process"), ("ver", "process"), ("appo", "process")]
)
def test_stop_in_mid_collection_takes_one_simulator_step(tmp_path, monkeypatch, system, pool):
    asking = Asking(monkeypatch, "collecting")
    config = slow(system, pool)
    run = train(config, tmp_path)
    assert asking.seconds < BOUND
    assert run.interrupted and run.step == 0, "what was collected is given up"
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == 0
    monkeypatch.undo()
    assert goes_on(config, tmp_path, steps=512).step >= 512


def test_stop_of_d4pg_in_mid_collection(tmp_path, monkeypatch):
    asking = Asking(monkeypatch, "filling the replay")
    config = slow("d4pg", "process", limiter=LimiterConfig(minimum=1000))
    run = train(config, tmp_path)
    assert asking.seconds < BOUND and run.interrupted
    monkeypatch.undo()
    resumed = goes_on(config, tmp_path, steps=1500, limiter=LimiterConfig(minimum=1000, samples_per_insert=1.0))
    assert resumed.step >= 1500


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo"])
def test_stop_in_mid_learning_takes_one_minibatch(tmp_path, monkeypatch, system):
    """An update has 512 mini-batches, and takes 51 s."""
    asking = Asking(monkeypatch, "learning")
    plain = PPOLearner._backward

    def sluggish(learner, rollout, batch):
        time.sleep(STEP_SECONDS)
        return plain(learner, rollout, batch)

    monkeypatch.setattr(PPOLearner, "_backward", sluggish)
    config = slow(system, "process", 0.0, ppo=PPOConfig(epochs=16, minibatches=32))
    run = train(config, tmp_path)
    assert asking.seconds < BOUND
    assert run.interrupted and run.step == 0, "a rollout that is half learned from does not count"
    monkeypatch.undo()
    assert goes_on(config, tmp_path, steps=512).step >= 512


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("system", ["ddppo", "appo"])
def test_stop_in_mid_learning_on_a_gpu(tmp_path, monkeypatch, system):
    """An update takes minutes here, and the host must not run ahead of the device by that much."""
    asking = Asking(monkeypatch, "learning")
    config = slow(system, "process", 0.0, device="cuda", ppo=PPOConfig(epochs=20_000, minibatches=32))
    run = train(config, tmp_path)
    assert asking.seconds < BOUND and run.interrupted and run.step == 0
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == 0


@pytest.mark.parametrize("system", ["ddppo", "appo", "d4pg"])
def test_seconds_end_a_run_in_mid_iteration(tmp_path, monkeypatch, system):
    monkeypatch.setattr("paceline.pool.launch._CLOSE_SECONDS", 0.2)  # then busy simulators are killed
    begin = time.monotonic()
    config = slow(system, "process", seconds=3600.0)  # an hour per step: the run must not wait for it
    run = train(
        dataclasses.replace(config, env=config.env.replace("3600.0", "3600.0&busy_from=2"), seconds=1.0), tmp_path
    )
    assert time.monotonic() - begin < 120, "it waited for a step"
    assert not run.interrupted
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == run.step


def test_two_ranks_stop_together_though_only_one_was_asked(tmp_path):
    """The signal reaches rank 1 alone."""
    config, folder = slow("ddppo", "process", rollout_steps=512), str(tmp_path)

    def work():
        place = int(os.environ["RANK"])
        if place == 1:
            plain = Phases.show

            def show(phases, name, done, total, unit=""):
                plain(phases, name, done, total, unit)
                if name == "collecting" and done == 2:
                    os.kill(os.getpid(), signal.SIGTERM)

            Phases.show = show
        begin = time.monotonic()
        run = train(config, Path(folder))
        return run.interrupted, run.step, time.monotonic() - begin

    for interrupted, step, seconds in on_ranks(2, work):
        assert interrupted and step == 0
        assert seconds < 120, "it went on to the end of the iteration, which takes 204 s"
    assert len(CheckpointFolder(tmp_path / "checkpoints").load().state["ranks"]) == 2


def test_a_simulator_that_fails_while_the_run_stops_does_not_cost_the_checkpoint(tmp_path, monkeypatch):
    """A signal to the whole job may also end the processes of a simulator."""
    asking = Asking(monkeypatch, "collecting")
    plain = ProcessPool.recv

    def recv(pool, *arguments, timeout=None, **options):
        if timeout is not None:  # only a run that stops gives a timeout
            raise SimulatorError(SimulatorFailure(cause="its engine is gone", phase="step", slots=(3,)))
        return plain(pool, *arguments, **options)

    monkeypatch.setattr(ProcessPool, "recv", recv)
    run = train(slow("ddppo", "process"), tmp_path)
    assert asking.seconds < BOUND and run.interrupted
    assert CheckpointFolder(tmp_path / "checkpoints").load().state["step"] == 0


def test_a_deterministic_run_stopped_before_its_first_iteration_keeps_its_checkpoint(tmp_path, monkeypatch):
    """Stopped during a rollout, resumed, stopped at once, and resumed: the same bits as without a stop."""
    marker = tmp_path / "stopped"
    env = f"tests.integration.test_training:Stopping?marker={marker}"
    config = tiny("lstm", env=env, system="ver", rollout_steps=15)
    train(config, tmp_path / "parts")
    plain = Run.receive_all

    def receive_all(run):
        run.stop.request("signal")
        return plain(run)

    with monkeypatch.context() as at_once:
        at_once.setattr(Run, "receive_all", receive_all)
        assert train(config, tmp_path / "parts", resume="latest").interrupted
    train(config, tmp_path / "parts", resume="latest")
    train(config, tmp_path / "whole")
    assert_equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))


def test_a_stop_while_a_checkpoint_is_due_does_not_wait_for_busy_simulators(tmp_path, monkeypatch):
    waits, plain_drain, plain_state = [], Sampler.drain, ProcessPool.state

    def drain(sampler, held):
        sampler._stop.request("signal")
        return plain_drain(sampler, held)

    def state(pool, timeout=None):
        waits.append(timeout)
        return plain_state(pool, timeout)

    monkeypatch.setattr(Sampler, "drain", drain)
    monkeypatch.setattr(ProcessPool, "state", state)
    config = slow("ver", "process", 0.0, rollout_steps=4, checkpoint=CheckpointConfig(seconds=1e-9))
    train(config, tmp_path)
    assert waits and all(timeout is not None and timeout <= 1.0 for timeout in waits)


def test_d4pg_in_turn_stops_between_two_updates(tmp_path, monkeypatch):
    """Sixty-four insertions allow for more than two hundred updates."""
    updates, plain = [], ReplayUpdates.update

    def learn(agent):
        updates.append(agent)
        if len(updates) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(agent)

    monkeypatch.setattr(ReplayUpdates, "update", learn)
    limiter = LimiterConfig(minimum=64, samples_per_insert=32.0)
    run = train(slow("d4pg", "serial", 0.0, limiter=limiter, d4pg=D4PGConfig(batch=8, concurrent=False)), tmp_path)
    assert run.interrupted and len(updates) == 3


def test_second_ctrl_c_ends_at_once_and_leaves_no_process(tmp_path):
    """After the first, the run waits for a simulator step of an hour."""
    options = ["--env", "tests.integration.slow:Slow?seconds=3600", "--pool.kind", "serial", "--pool.num-envs", "2"]
    command = [sys.executable, "-m", "paceline", "train", "cartpole", *options, "--run-dir", str(tmp_path / "run")]
    run = subprocess.Popen(
        [*command, "--log-seconds", "0.2", "--device", "cpu"], stderr=subprocess.PIPE, text=True, bufsize=1
    )
    assert run.stderr is not None
    next(line for line in run.stderr if "collecting" in line)
    children = [child.pid for child in psutil.Process(run.pid).children(recursive=True)]
    run.send_signal(signal.SIGINT)
    next(line for line in run.stderr if "stopping" in line)
    time.sleep(1.2)  # an earlier signal would be ignored as a repetition
    assert run.poll() is None
    run.send_signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130
    assert not [pid for pid in children if psutil.pid_exists(pid)]
    assert not (tmp_path / "run" / "checkpoints" / "latest").exists()


@pytest.mark.parametrize("interactive", [True, False])
def test_a_second_ctrl_c_in_a_notebook_leaves_the_process_alive(monkeypatch, interactive):
    monkeypatch.setattr("paceline.stop.ECHO_SECONDS", -1.0)
    monkeypatch.setattr("paceline.stop.os._exit", lambda code: pytest.exit(f"the process ends with {code}"))
    if interactive:
        monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    stop = Stop(Group.join("cpu", GroupConfig(), Path("nowhere")))
    stop.loop_is_running = True
    with stop.on_signals():
        signal.raise_signal(signal.SIGINT)
        assert stop.reason == "signal", "the first one only asks"
        with pytest.raises(KeyboardInterrupt if interactive else pytest.exit.Exception):
            signal.raise_signal(signal.SIGINT)
