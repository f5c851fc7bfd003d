"""The choice of a backend, from made-up measurements; and that what is chosen behaves as if it were new."""

from __future__ import annotations

import math
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest

from paceline.envs.factory import Factory
from paceline.errors import SimulatorError
from paceline.pool import PoolConfig, auto, make_pool, process
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from tests.pool.faulty import Counting, counting, faulty

pytestmark = pytest.mark.usefixtures("forked_workers")


class Sleeping(Counting):
    def step(self, action):
        time.sleep(0.05)
        return super().step(action)


class Burning(Counting):
    def step(self, action):
        end = time.process_time() + 0.005
        while time.process_time() < end:
            pass
        return super().step(action)


def test_a_waiting_simulator_gets_a_worker_each():
    with make_pool(Factory(make=Sleeping), PoolConfig(num_envs=4)) as pool:
        assert isinstance(pool, ProcessPool) and len(pool.worker_pids()) == 4


def test_a_heavy_simulator_gets_a_worker_per_core(monkeypatch):
    monkeypatch.setattr(auto, "available_core_ids", lambda: [0, 1])
    with make_pool(Factory(make=Burning), PoolConfig(num_envs=6)) as pool:
        assert isinstance(pool, ProcessPool) and len(pool.worker_pids()) == 2


def test_a_number_of_workers_is_obeyed_without_a_measurement(monkeypatch):
    monkeypatch.setattr(auto, "choose", None)
    with make_pool(Factory(make=Counting), PoolConfig(num_envs=6, workers=3)) as pool:
        assert isinstance(pool, ProcessPool) and len(pool.worker_pids()) == 3


ENGINE = """
import sys, time
for line in sys.stdin:
    end = time.process_time() + 0.005
    while time.process_time() < end:
        pass
    print(flush=True)
"""


class Apart(Counting):
    """Has a process of its own that does the work, as ViZDoom does."""

    def __init__(self, *args):
        super().__init__(*args)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.engine = subprocess.Popen([sys.executable, "-S", "-c", ENGINE], bufsize=0, **pipes)

    def step(self, action):
        self.engine.stdin.write(b"\n")
        self.engine.stdout.readline()
        return super().step(action)

    def close(self):
        self.engine.kill()
        self.engine.wait()


class WithHelper(Burning):
    """Has a process that does nothing."""

    def __init__(self, *args):
        super().__init__(*args)
        self.helper = subprocess.Popen(["sleep", "60"])

    def close(self):
        self.helper.kill()
        self.helper.wait()


@pytest.mark.parametrize(("make", "cores", "workers"), [(Apart, 2, 2), (Apart, 3, 6), (WithHelper, 3, 3)])
def test_a_simulator_in_a_process_of_its_own_gets_two_workers_per_core_of_many(monkeypatch, make, cores, workers):
    monkeypatch.setattr(auto, "FEW_CORES", 2)  # not 4: the workers of 5 cores take seconds to start
    monkeypatch.setattr(auto, "available_core_ids", lambda: list(range(cores)))
    with make_pool(Factory(make=make), PoolConfig(num_envs=8)) as pool:
        assert isinstance(pool, ProcessPool) and len(pool.worker_pids()) == workers


@pytest.mark.parametrize("fastest", [0, 1, 2])
def test_a_light_simulator_gets_whatever_was_fastest(monkeypatch, fastest):
    rates = iter([1.0, 1.0, 1.0])
    monkeypatch.setattr(auto, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(auto, "available_core_ids", lambda: [0, 1])
    monkeypatch.setattr(auto, "HEAVY_SECONDS", math.inf)
    monkeypatch.setattr(auto, "measure", lambda pool, seconds: next(rates) + (next_index() == fastest))
    counter = iter(range(3))

    def next_index():
        return next(counter)

    with make_pool(counting(), PoolConfig(num_envs=4), seed=3) as pool:
        expected = [(SerialPool, None), (ProcessPool, 1), (ProcessPool, 2)][fastest]
        assert isinstance(pool, expected[0])
        if isinstance(pool, ProcessPool):
            assert len(pool.worker_pids()) == expected[1]


def test_measuring_leaves_no_trace_in_the_stream(monkeypatch):
    monkeypatch.setattr(auto, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(auto, "TRIAL_SECONDS", 0.05)
    factory = Factory(make=lambda env: gym.make("CartPole-v1"))
    with (
        make_pool(factory, PoolConfig(num_envs=3), seed=5) as chosen,
        SerialPool(factory, PoolConfig(num_envs=3), seed=5) as reference,
    ):
        for _ in range(30):
            left, right = chosen.recv(min_slots=None), reference.recv(min_slots=None)
            np.testing.assert_array_equal(left.obs["obs"], right.obs["obs"])
            chosen.send(np.ones(3, np.int64), left.slots)
            reference.send(np.ones(3, np.int64), right.slots)
        assert len(chosen.take_episodes()) == len(reference.take_episodes())


def test_process_without_a_number_of_workers_never_runs_here(monkeypatch):
    monkeypatch.setattr(auto, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(auto, "TRIAL_SECONDS", 0.05)
    with make_pool(counting(), PoolConfig(kind="process", num_envs=2)) as pool:
        assert isinstance(pool, ProcessPool)


@pytest.fixture
def _quick_looks(monkeypatch):
    monkeypatch.setattr(process, "CHECK_SECONDS", 0.1)


@pytest.mark.usefixtures("_quick_looks")
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("exit", r"in step \(slot 0, worker 0.*exited by itself with code 3"),
        ("hang", r"in step \(slot 0, worker 0.*no answer for .*pool.step_timeout_seconds"),
        ("hang_in_reset", r"in reset \(slot 0, worker 0.*no answer for .*pool.step_timeout_seconds"),
        ("hang_in_make", r"in make \(slot 0, worker 0\): making an environment for .*pool.start_timeout_seconds"),
        ("raise", r"in step \(slot 0, worker 0.*the floor is lava"),
    ],
)
def test_a_simulator_that_fails_while_it_is_measured_is_named(fault, cause):
    start_timeout = 2.0 if fault == "hang_in_make" else 60.0
    config = PoolConfig(num_envs=4, step_timeout_seconds=2.0, start_timeout_seconds=start_timeout)
    with pytest.raises(SimulatorError, match=rf"(?s){cause}.*measured to choose a pool"):
        make_pool(faulty(fault, at=2), config)


def test_a_simulator_that_failed_once_while_it_was_measured_does_not_run_in_this_process(tmp_path, monkeypatch):
    monkeypatch.setattr(auto, "TRIAL_SECONDS", 0.02)
    with make_pool(faulty("exit", mark=str(tmp_path / "failed")), PoolConfig(num_envs=2)) as pool:
        assert isinstance(pool, ProcessPool)
        assert len(pool.recv(min_slots=None)) == 2


class FailsEveryThird(Counting):
    """Its steps fail now and then, as those of a simulator do that `on_error restart` is for. The shortest measurement
    has three steps."""

    taken = 0

    def step(self, action):
        self.taken += 1
        if self.taken == 3:
            raise RuntimeError("now and then")
        return super().step(action)


def test_failures_that_may_be_replaced_do_not_end_the_measurement(monkeypatch):
    monkeypatch.setattr(auto, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(auto, "TRIAL_SECONDS", 0.02)
    config = PoolConfig(num_envs=2, on_error="restart", max_restarts_per_hour=100_000)
    with make_pool(Factory(make=FailsEveryThird), config) as pool:
        assert isinstance(pool, ProcessPool), "one that has failed does not run in this process"
        assert len(pool.recv(min_slots=None)) == 2
