"""The threads of a library are found, and bound to cores where that is faster."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest

pytest.importorskip("envpool")

from paceline.accel.pinning import TASKS, bind, make_noting_threads, unbind
from paceline.pool import make_pool
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.envpool_engine import BOUND_SECONDS, LOOKS, Binding

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux")
CORES = available_core_ids()


@pytest.fixture
def sleepers():
    """Makes three threads that wait for the end of the test."""
    over = threading.Event()
    threads = [threading.Thread(target=over.wait) for _ in range(3)]

    def make() -> list[threading.Thread]:
        for thread in threads:
            thread.start()
        return threads

    yield make
    over.set()
    for thread in threads:
        thread.join()


def name_of(thread: int) -> str:
    return (TASKS / str(thread) / "comm").read_text()


def test_only_the_threads_that_make_starts_are_found(sleepers):
    over = threading.Event()
    another = threading.Thread(target=over.wait)
    another.start()
    before = name_of(threading.get_native_id())
    try:
        made, found = make_noting_threads(sleepers)
    finally:
        over.set()
        another.join()
    assert found == sorted(thread.native_id for thread in made)
    assert name_of(threading.get_native_id()) == before


def test_the_name_of_the_thread_is_restored_after_an_error():
    before = name_of(threading.get_native_id())
    with pytest.raises(ZeroDivisionError):
        make_noting_threads(lambda: 1 / 0)
    assert name_of(threading.get_native_id()) == before


def test_bind_gives_each_a_core_and_unbind_gives_all_cores_back(sleepers):
    _, threads = make_noting_threads(sleepers)
    bind(threads, CORES)
    assert [os.sched_getaffinity(thread) for thread in threads] == [{CORES[n % len(CORES)]} for n in range(3)]
    unbind(threads, CORES)
    assert all(os.sched_getaffinity(thread) == set(CORES) for thread in threads)
    bind([2**22 + 1], CORES)  # a thread that has ended is no error


def test_without_proc_no_threads_are_found(monkeypatch, tmp_path, sleepers):
    monkeypatch.setattr("paceline.accel.pinning.TASKS", tmp_path)
    made, found = make_noting_threads(sleepers)
    assert len(made) == 3 and found == []


def test_a_system_that_forbids_binding_is_no_error(monkeypatch, sleepers):
    def refuse(*_):
        raise PermissionError

    _, threads = make_noting_threads(sleepers)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    bind(threads, CORES)


class Work:
    """The fields of an assignment that a binding reads."""

    def __init__(self, affinity, threads=2):
        self.cores, self.threads, self.affinity = [0, 1], threads, affinity


def bound(monkeypatch, work, *times) -> list[bool]:
    """Whether threads are bound at the start, and after `LOOKS` batches of each of `times`."""
    calls = []
    monkeypatch.setattr("paceline.pool.envpool_engine.bind", lambda threads, cores: calls.append(True))
    monkeypatch.setattr("paceline.pool.envpool_engine.unbind", lambda threads, cores: calls.append(False))
    binding, found = Binding(work), []
    binding.make(object)
    found.append(bool(calls) and calls[-1])
    for seconds in times:
        for _ in range(LOOKS):
            binding.look(seconds)
        found.append(bool(calls) and calls[-1])
    return found


def test_the_time_of_a_batch_decides(monkeypatch):
    short, long = BOUND_SECONDS
    times = (short / 2, short * 2, short * 2, long * 2, short * 2)
    assert bound(monkeypatch, Work(None), *times) == [False, False, True, True, False, True]


def test_the_setting_overrides_the_time_of_a_batch(monkeypatch):
    times = (BOUND_SECONDS[0] * 2, BOUND_SECONDS[1] * 2)
    assert bound(monkeypatch, Work(True), *times) == [True] * 3
    assert bound(monkeypatch, Work(False), *times) == [False] * 3
    assert bound(monkeypatch, Work(True, threads=3), *times) == [True] * 3
    assert bound(monkeypatch, Work(None, threads=1), *times) == [False] * 3, "the other core would have nothing to do"


def test_threads_of_envpool_are_bound():
    before = {task.name for task in TASKS.iterdir()}
    with make_pool("envpool:CartPole-v1", PoolConfig(num_envs=len(CORES), affinity=True)) as pool:
        batch = pool.recv(min_slots=None)
        pool.send(np.zeros(len(CORES), np.int64), batch.slots)
        pool.recv(min_slots=None)
        others = [int(task.name) for task in TASKS.iterdir() if task.name not in before]
        alone = [os.sched_getaffinity(thread) for thread in others if len(os.sched_getaffinity(thread)) == 1]
    assert set.union(*alone) == set(CORES)
