"""A worker that makes no progress is noticed whatever it is doing, and nothing in the pool waits for it for ever."""

from __future__ import annotations

import itertools
import os
import signal
import time

import numpy as np
import pytest

from paceline.errors import SimulatorError
from paceline.pool import process
from paceline.pool.config import PoolConfig
from paceline.pool.heartbeat import MAKE, STEP, HangDetector
from paceline.pool.process import ProcessPool
from tests.pool.faulty import Counting, Factory, Fragile, Heavy, counting, faulty

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture(autouse=True)
def _look_often(monkeypatch):
    monkeypatch.setattr(process, "CHECK_SECONDS", 0.1)


def build(factory, **options):
    return ProcessPool(factory, PoolConfig(**{"num_envs": 4, "workers": 2, "nice": 0, **options}), seed=11)


def turn(pool):
    batch = pool.recv(min_slots=None)
    lost = batch.slots[batch.lost].tolist()
    pool.send(np.zeros(len(batch), np.int64), batch.slots)
    return lost


def test_a_worker_stopped_between_two_steps_is_replaced(caplog):
    """It has not begun the step that it was told to do, so its heartbeat says that it waits for a command."""
    with build(counting(length=50), step_timeout_seconds=2.0) as pool:
        batch = pool.recv(min_slots=None)
        os.kill(pool.worker_pids()[1], signal.SIGSTOP)
        pool.send(np.zeros(4, np.int64), batch.slots)
        assert turn(pool) == [2, 3]
        assert turn(pool) == [] and pool.restarts == 1
    for fact in ("slots 2, 3", "worker 1", "pool.step_timeout_seconds", "its process is stopped"):
        assert fact in caplog.text


@pytest.mark.parametrize("where", ["make", "close"])
def test_a_worker_that_hangs_while_an_environment_is_remade_is_replaced(where, tmp_path, caplog):
    factory = Factory(make=lambda env: Fragile(env, str(tmp_path), where))
    with build(factory, on_error="restart", start_timeout_seconds=4.0) as pool:
        lost = [turn(pool) for _ in range(6)]
        assert pool.restarts == 2
    assert sorted(itertools.chain(*lost)) == [2, 3]
    for fact in ("in make (slot 2, worker 1", "pool.start_timeout_seconds", "faulty.py"):
        assert fact in caplog.text


def test_a_reset_that_hangs_is_named():
    with (
        build(faulty("hang_in_reset", only=3), step_timeout_seconds=2.0, max_restarts=0) as pool,
        pytest.raises(SimulatorError, match=r"in reset \(slot 3, worker 1"),
    ):
        pool.recv(min_slots=None)


class Slow(Counting):
    def step(self, action):
        time.sleep(0.2)
        return super().step(action)


def test_the_limit_is_for_one_step_and_not_for_a_job():
    """A worker steps its environments one after the other, and each is progress."""
    with build(Factory(make=Slow), num_envs=12, workers=1, step_timeout_seconds=2.0) as pool:
        turn(pool)
        assert not pool.recv(min_slots=None).lost.any() and pool.restarts == 0


def test_a_stopped_worker_whose_pipe_is_full_blocks_nobody():
    """States are larger than a pipe. The worker is replaced, and its streams start anew."""
    with build(Factory(make=Heavy), step_timeout_seconds=2.0) as pool:
        pool.recv(min_slots=None)
        state = pool.state()
        os.kill(pool.worker_pids()[1], signal.SIGSTOP)
        assert pool.restore(state).tolist() == [2, 3]
        batch = pool.recv(min_slots=None)
        assert len(batch) == 4 and not batch.lost.any() and pool.restarts == 1


def test_a_pool_that_was_away_does_not_judge_by_its_first_look():
    """It may have learned for a minute, or have been stopped along with its workers."""
    hangs = HangDetector(PoolConfig(step_timeout_seconds=60))
    assert not any(hangs.check(7, (1.0, 3, STEP), now) for now in (0.0, 1000.0, 1000.5))
    assert "no answer for 1001.0 s (pool.step_timeout_seconds)" in hangs.check(7, (1.0, 3, STEP), 1001.0)


def test_progress_starts_the_clock_again_and_making_has_a_limit_of_its_own():
    hangs = HangDetector(PoolConfig(step_timeout_seconds=2, start_timeout_seconds=9))
    assert not any(hangs.check(7, (float(now // 2), 3, STEP), now) for now in range(100))
    assert not any(hangs.check(8, (1.0, 3, MAKE), now) for now in range(10))
    assert "pool.start_timeout_seconds" in hangs.check(8, (1.0, 3, MAKE), 10)
    assert not any(hangs.check(9, None, now) for now in range(10))
    hangs.forget(9)
    assert not hangs.check(9, None, 10)
