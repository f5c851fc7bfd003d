"""No fault of a simulator is silent, and none takes more with it than its own episode."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import time

import gymnasium as gym
import numpy as np
import psutil
import pytest

from paceline.errors import SimulatorError
from paceline.pool import leaks
from paceline.pool.channel import Message, Result, pack_ints
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.pool.process import ProcessPool
from paceline.pool.serial import SerialPool
from tests.pool.faulty import Factory, Leaking, counting, faulty

KINDS = {"serial": SerialPool, "process": ProcessPool}
forked = pytest.mark.usefixtures("forked_workers")


def build(kind, factory, **options):
    config = PoolConfig(**{"num_envs": 4, "workers": 2, "nice": 0, **options})
    return KINDS[kind](factory, config, seed=11)


def turn(pool):
    batch = pool.recv(min_slots=None)
    snapshot = {slot: (batch.obs["obs"][row].copy(), bool(batch.lost[row])) for row, slot in enumerate(batch.slots)}
    pool.send(np.zeros(len(batch), np.int64), batch.slots)
    return snapshot


def run(pool, turns=10):
    return [turn(pool) for _ in range(turns)]


OWN_FAULTS = [
    ("raise", "step", "RuntimeError: the floor is lava"),
    ("nan", "step", "the reward is nan"),
    ("shape", "step", r"shape \(3,\); its space says \(5,\)"),
    ("dtype", "step", "dtype <U1; its space says float32"),
    ("raise_in_reset", "reset", "RuntimeError: cannot be reset"),
]


@forked
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("fault", "phase", "cause"), OWN_FAULTS)
def test_own_fault_ends_the_run_with_the_first_cause(kind, fault, phase, cause):
    """The user sees what happened, where, to whom: slot, worker, seed, episode step, traceback."""
    pool = None
    try:
        with pytest.raises(SimulatorError, match=cause) as caught:  # noqa: PT012 - serial pools reset when built
            pool = build(kind, faulty(fault, only=2))
            run(pool)
        failure = caught.value.failure
        assert failure.phase == phase and failure.slots == (2,)
        assert failure.seed is not None
        assert failure.worker == (1 if kind == "process" else None)
        if phase == "step":
            assert "slot 2" in str(caught.value) and "episode 0" in str(caught.value)
        if fault == "raise":
            assert failure.step == 2 and "faulty.py" in failure.traceback
    finally:
        if pool is not None:
            pool.close()


@forked
@pytest.mark.parametrize("kind", KINDS)
def test_a_simulator_that_cannot_be_made(kind):
    with pytest.raises(SimulatorError, match="in make .*RuntimeError: cannot be made"):
        build(kind, faulty("raise_in_make", only=3))


@forked
def test_a_factory_that_a_worker_cannot_load():
    """The worker's own first error is shown, not the broken pipe that follows from it."""

    class Unloadable:
        def __reduce__(self):
            return (__import__, ("a_module_that_only_the_parent_has",))

    factory = Factory(make=Unloadable())
    with pytest.raises(SimulatorError, match="in its worker .*No module named 'a_module_that_only_the_parent_has'"):
        build("process", factory)


@forked
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", ["raise", "nan", "shape", "dtype"])
def test_own_fault_is_restarted_when_asked_for(kind, fault, tmp_path, caplog):
    with build(kind, faulty(fault, only=2, mark=str(tmp_path / "failed")), on_error="restart") as pool:
        turns = run(pool, 6)
    lost = [[slot for slot, (_, lost) in snapshot.items() if lost] for snapshot in turns]
    assert lost == [[], [], [], [2], [], []]
    assert turns[3][2][0][2] == 0, "the replacement shows the first observation of a new episode"
    assert [snapshot[0][0][2] for snapshot in turns] == [0, 1, 2, 3, 4, 0], "its neighbours go on"
    assert "replacing a simulator (1 of 20 an hour)" in caplog.text


@pytest.mark.parametrize("fault", ["kill", "exit", "segfault", "hang"])
def test_dead_or_hung_worker_is_replaced_and_only_its_episodes_are_lost(fault, tmp_path, caplog):
    factory = faulty(fault, only=2, mark=str(tmp_path / "failed"))
    with build("process", factory, step_timeout_seconds=1.0) as pool:
        turns = run(pool, 8)
        assert pool.restarts == 1
    lost = [[slot for slot, (_, lost) in snapshot.items() if lost] for snapshot in turns]
    assert sorted(itertools.chain(*lost)) == [2, 3], "the other worker's slots lose nothing"
    first_lost = next(index for index, slots in enumerate(lost) if 2 in slots)
    assert first_lost == 3 and turns[first_lost][2][0][1:3].tolist() == [0, 0]
    assert [snapshot[0][0][2] for snapshot in turns] == [0, 1, 2, 3, 4, 0, 1, 2]
    for fact in ("slot 2", "worker 1", "seed", "episode 0", "step 2"):
        assert fact in caplog.text
    if fault == "kill":
        assert "SIGKILL" in caplog.text
    if fault == "exit":
        assert "code 3" in caplog.text
    if fault in ("hang", "segfault"):
        assert "faulty.py" in caplog.text, "the log shows where the simulator was"


@forked
def test_others_go_on_while_a_hung_worker_is_waited_for(tmp_path):
    factory = faulty("hang", only=2, mark=str(tmp_path / "failed"))
    with build("process", factory, step_timeout_seconds=30.0, num_envs=4, workers=4) as pool:
        steps = 0
        while steps < 200:
            batch = pool.recv(min_slots=3)
            steps += len(batch)
            pool.send(np.zeros(len(batch), np.int64), batch.slots)
        assert pool.restarts == 0


@forked
def test_restart_budget_ends_the_run():
    with build("process", faulty("kill", only=2), max_restarts=2) as pool:
        with pytest.raises(SimulatorError, match=r"budget of 2 restarts is spent \(pool.max_restarts\)"):
            run(pool, 50)
        assert pool.restarts == 2


@forked
def test_killed_between_steps_loses_what_the_caller_holds():
    """A worker that dies while its slots are held: their actions go nowhere, and new episodes begin."""
    with build("process", counting(length=50)) as pool:
        run(pool, 3)
        batch = pool.recv(min_slots=None)
        before = batch.obs["obs"].copy()
        os.kill(pool.worker_pids()[1], signal.SIGKILL)
        psutil.wait_procs([psutil.Process(pool.worker_pids()[1])], timeout=5)
        assert (batch.obs["obs"] == before).all(), "what was received stays readable"
        pool.send(np.zeros(4, np.int64), batch.slots)
        batch = pool.recv(min_slots=None)
        assert batch.lost.tolist() == [False, False, True, True]
        assert batch.obs["obs"][:, 2].tolist() == [4, 4, 0, 0]
        assert not batch.reward[2:].any() and not batch.ended().any()
        pool.send(np.zeros(4, np.int64), batch.slots)
        assert not pool.recv(min_slots=None).lost.any()


@forked
def test_ready_rows_of_a_dead_worker_are_still_delivered():
    with build("process", counting(length=50)) as pool:
        batch = pool.recv(min_slots=None)
        pool.send(np.zeros(4, np.int64), batch.slots)
        pool.recv(min_slots=1, max_slots=1, group=None)
        deadline = time.monotonic() + 10
        while pool._slots.num_ready(None) < 3 and time.monotonic() < deadline:
            pool._listen(0.1)
        os.kill(pool.worker_pids()[1], signal.SIGKILL)
        rest = pool.recv(min_slots=3)
        assert rest.obs["obs"][:, 2].tolist() == [1, 1, 1] and not rest.lost.any()


@forked
def test_a_restarted_pool_does_not_repeat_its_streams(tmp_path):
    factory = faulty("kill", only=2, mark=str(tmp_path / "failed"))
    with build("process", factory) as pool:
        noise = [snapshot[2][0][4] for snapshot in run(pool, 8)]
    assert len(set(noise)) == len(noise)


def test_slow_leak_is_reported(monkeypatch, caplog):
    monkeypatch.setattr(leaks, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.0)
    with build("process", Factory(make=Leaking), num_envs=1, workers=1, leak_megabytes=20.0) as pool:
        pool._check_workers(time.monotonic())
        for _ in range(20):
            turn(pool)
        pool._check_workers(time.monotonic())
    assert "may leak" in caplog.text and "worker process" in caplog.text


def test_no_false_alarm_about_memory(monkeypatch, caplog):
    monkeypatch.setattr(leaks, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(leaks, "SETTLE_SECONDS", 0.0)
    with build("process", counting(), leak_megabytes=20.0) as pool:
        for _ in range(20):
            turn(pool)
            pool._check_workers(time.monotonic())
    assert "may leak" not in caplog.text


def test_simulators_that_start_slowly_are_no_leak_and_one_that_grows_on_is(monkeypatch, caplog):
    """Thirty-two Dooms take half a gigabyte, most of it after their worker was first measured."""
    starting = [min(80 + 30 * second, 680) for second in range(300)]
    leaking = [680 + grown for grown in (400, 520, 530, 1040)]
    sizes = iter(starting[:: int(leaks.CHECK_SECONDS)] + leaking)
    monkeypatch.setattr(leaks, "tree_megabytes", lambda pid: next(sizes))
    watch = leaks.LeakDetector(leak_megabytes=512)
    for now in range(300):
        watch.check([7], now)
    assert not caplog.text
    for minute in range(len(leaking)):
        watch.check([7], 300 + 60 * minute)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [
        "worker process 7 has grown from 680 to 1200 MB",
        "worker process 7 has grown from 680 to 1720 MB",
    ]


def test_simulators_that_start_while_nobody_looks_are_no_leak(monkeypatch, caplog):
    """Nothing is measured during a long first update."""
    measured = {0: 80, 5: 100, 70: 680, 130: 690}
    sizes = iter(measured.values())
    monkeypatch.setattr(leaks, "tree_megabytes", lambda pid: next(sizes))
    watch = leaks.LeakDetector(leak_megabytes=512)
    for now in measured:
        watch.check([7], now)
    assert not caplog.text


@forked
def test_workers_are_not_measured_while_they_make_their_simulators(monkeypatch):
    measured = []
    with build("process", counting(), workers=2) as pool:
        monkeypatch.setattr(pool._leaks, "check", lambda pids, now: measured.append(pids))
        shape = pool._shapes.pop(0)
        pool._check_workers(time.monotonic())
        pool._shapes[0] = shape
        pool._check_workers(time.monotonic())
        first, second = pool.worker_pids()
    assert measured == [[second], [first, second]]


def test_a_worker_with_the_number_of_a_dead_one_settles_anew(monkeypatch, caplog):
    sizes = {7: 600.0}
    monkeypatch.setattr(leaks, "tree_megabytes", sizes.get)
    watch = leaks.LeakDetector(leak_megabytes=100)
    for now, pids, size in (
        (0, [7], 600),
        (60, [7], 600),
        (70, [], 0),
        (80, [7], 100),
        (140, [7], 100),
        (200, [7], 300),
    ):
        sizes[7] = size
        watch.check(pids, now)
    assert "from 100 to 300 MB" in caplog.text and len(caplog.records) == 1


@forked
def test_closing_twice_and_after_a_failure_is_fine():
    pool = build("process", faulty("raise", only=0))
    with pytest.raises(SimulatorError):
        run(pool)
    pool.close()
    pool.close()


@forked
def test_warnings_go_to_the_paceline_logger(tmp_path, caplog):
    factory = faulty("exit", only=0, mark=str(tmp_path / "failed"))
    with caplog.at_level(logging.WARNING, logger="paceline"), build("process", factory) as pool:
        run(pool, 5)
    assert {record.name for record in caplog.records} == {"paceline.pool.budget"}


@forked
def test_words_of_the_dead_are_not_taken_for_those_of_their_successors():
    """A message that a worker sent before it died, and that is read only after its replacement was started."""
    with build("process", counting()) as pool:
        batch = pool.recv(min_slots=None)
        pool._handle([Message(sender=999, kind=Result.READY, payload=pack_ints([0, 1]))])
        assert pool._slots.num_ready(None) == 0
        pool.send(np.zeros(4, np.int64), batch.slots)
        assert len(pool.recv(min_slots=None)) == 4


class OldReset(gym.Env):
    """The interface of Gym before 0.26."""

    observation_space = gym.spaces.Box(0, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32)

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, {}


class OldStep(OldReset):
    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (OldReset, r"reset returned a ndarray; Gymnasium's returns \(observation, info\).*old Gym"),
        (OldStep, r"step returned 4 values; Gymnasium's returns \(observation, reward, terminated, truncated, info\)"),
    ],
)
def test_environments_of_the_old_gym_get_a_hint(env, message):
    with pytest.raises(SimulatorError, match=message):
        one_step(env)


def one_step(env):
    with make_pool(env, PoolConfig(kind="serial", num_envs=1)) as pool:
        pool.recv()
        pool.send(np.zeros(1, np.int64), np.arange(1))
        pool.recv()
