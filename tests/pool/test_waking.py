"""`wake` ends a wait, or a turn of a serial pool, from anywhere: another thread, a signal handler, a simulator."""

from __future__ import annotations

import os
import select
import signal
import time

import numpy as np
import pytest

from paceline.envs.factory import Factory
from paceline.pool import listening
from paceline.pool.config import PoolConfig
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from tests.pool.faulty import Counting, counting, faulty


class Waking(Counting):
    """Environment 2 wakes its pool in its first step."""

    pool: SerialPool
    stepped: list[int]

    def step(self, action):
        self.stepped.append(self.env)
        if self.env == 2 and self.steps == 0:
            self.pool.wake()
        return super().step(action)


def test_a_serial_pool_stops_between_two_environments():
    """What is still to be stepped, and what is ready, is for the next `recv`."""
    Waking.stepped = []
    with SerialPool(Factory(make=Waking), PoolConfig(num_envs=6)) as pool:
        Waking.pool = pool
        pool.send(np.zeros(6, np.int64), pool.recv(min_slots=None).slots)
        assert len(pool.recv(min_slots=None)) == 0 and Waking.stepped == [0, 1, 2]
        batch = pool.recv(min_slots=None)
        assert batch.slots.tolist() == Waking.stepped == [0, 1, 2, 3, 4, 5]
        assert batch.obs["obs"][:, 2].tolist() == [1] * 6 and batch.reward.tolist() == [1.0] * 6


def test_a_serial_pool_woken_before_a_turn_steps_nothing():
    with SerialPool(counting(), PoolConfig(num_envs=2)) as pool:
        pool.wake()
        batch = pool.recv(min_slots=None)
        assert len(batch) == 2, "what is ready needs no step"
        pool.send(np.zeros(2, np.int64), batch.slots)
        assert len(pool.recv(min_slots=None)) == 0
        assert pool.recv(min_slots=None).obs["obs"][:, 2].tolist() == [1, 1]


def test_a_signal_handler_wakes_a_lock_step_wait_and_busy_workers_do_not_delay_the_end():
    """Workers are in the middle of steps that take ten minutes."""
    pool = ProcessPool(faulty("hang", at=1), PoolConfig(num_envs=4, workers=4))
    before = signal.signal(signal.SIGALRM, lambda *_: pool.wake())
    try:
        pool.send(np.zeros(4, np.int64), pool.recv(min_slots=None).slots)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert len(pool.recv(min_slots=None)) == 0
        pool.wake()
        assert len(pool.recv(min_slots=None)) == 0, "woken before the wait"
    finally:
        signal.signal(signal.SIGALRM, before)
        start = time.monotonic()
        pool.close()
    assert time.monotonic() - start < 8, "three seconds of grace, and a busy machine"


def test_a_failure_does_not_hide_that_the_pool_was_woken():
    """A scheduler may end simulators first. The caller learns that it should stop, and of the failure later."""
    with ProcessPool(faulty("raise", at=1, only=0), PoolConfig(num_envs=1, workers=1)) as pool:
        pool.send(np.zeros(1, np.int64), pool.recv(min_slots=None).slots)
        select.select([pool._crew.results_fd], [], [])
        listen, pool._listen = pool._listen, lambda seconds: (pool.wake(), listen(seconds))
        assert len(pool.recv(min_slots=None)) == 0
        pool._listen = listen
        with pytest.raises(Exception, match="the floor is lava"):
            pool.recv(min_slots=None)


def test_a_signal_handler_may_wake_while_another_wake_is_under_way(monkeypatch):
    waker = listening.Waker()
    real_write, writes = os.write, []

    def write(fd, data):
        writes.append(data)
        if len(writes) == 1:
            signal.raise_signal(signal.SIGALRM)
        return real_write(fd, data)

    before = signal.signal(signal.SIGALRM, lambda *_: waker.wake())
    monkeypatch.setattr(listening.os, "write", write)
    try:
        waker.wake()
    finally:
        signal.signal(signal.SIGALRM, before)
        monkeypatch.undo()
    assert len(writes) == 2 and os.read(waker.fd, 10) == b"!!"
    waker.close()
    waker.wake()
