"""A forked worker is to the pool, and to all who look for it, what a new process is."""

from __future__ import annotations

import os
import sys

import numpy as np
import psutil

from paceline.envs.factory import Factory
from paceline.pool import PoolConfig, guardian
from paceline.pool.process import ProcessPool
from tests.pool.faulty import Counting


class Looking(Counting):
    """Its reward is 1 if the worker is as it should be."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        wanted = os.environ["PACELINE_TEST"] == "here" and os.getcwd() == os.environ["PACELINE_FOLDER"]
        clean = "torch" not in sys.modules and sys.argv[0].endswith("worker.py")
        return observation, float(wanted and clean), *rest


def look(pool: ProcessPool) -> None:
    pids = pool.worker_pids()
    pool.send(np.zeros(3, np.int64), pool.recv(min_slots=None).slots)
    assert pool.recv(min_slots=None).reward.tolist() == [1.0] * 3
    assert len(set(pids)) == 2
    for pid in pids:
        assert psutil.Process(pid).ppid() == os.getpid() and os.getsid(pid) == os.getpgid(pid) == pid
    marks = guardian.marked(pool._crew._mark)
    assert {pid: mark for pid, mark in marks.items() if pid in pids} == {
        worker.pid: worker.mark for worker in pool._crew.workers
    }


def build() -> ProcessPool:
    return ProcessPool(Factory(make=Looking), PoolConfig(num_envs=3, workers=2), seed=0)


def test_a_forked_worker_is_like_a_new_one(forked_workers, monkeypatch, tmp_path):
    monkeypatch.setenv("PACELINE_TEST", "here")
    monkeypatch.setenv("PACELINE_FOLDER", str(tmp_path.resolve()))
    monkeypatch.chdir(tmp_path)
    with build() as pool:
        look(pool)
        mark, pids = pool._crew._mark, pool.worker_pids()
    assert not guardian.marked(mark) and not any(map(psutil.pid_exists, pids))
