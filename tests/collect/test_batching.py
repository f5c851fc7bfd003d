"""Adaptive batching: who is waited for, and for how long."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from paceline.collect.batching import AdaptiveBatching
from paceline.collect.config import BatchingConfig
from paceline.errors import UsageError
from paceline.pool import PoolConfig, make_pool


class Scripted:
    """A pool that notes how it was asked, and has as many slots ready as it is told."""

    def __init__(self, pool, ready: list[int]) -> None:
        self.spec, self._ready = pool.spec, ready
        self._batch = pool.recv(min_slots=None)
        self.asked: list[tuple] = []

    def recv(self, min_slots=1, max_slots=None, timeout=None, group=None, first=None):
        self.asked.append((min_slots, max_slots, timeout))
        count = self._ready.pop(0)
        batch = self._batch
        fields = ("slots", "reward", "terminated", "truncated", "active", "lost")
        rows = {name: getattr(batch, name)[:count] for name in fields}
        seconds = np.full(count, 0.2, np.float32)
        return type(batch)(obs={}, final_obs={}, step_seconds=seconds, **rows)


@pytest.fixture
def pool():
    with make_pool("gym:CartPole-v1", PoolConfig(kind="serial", num_envs=8)) as pool:
        yield pool


def test_waits_for_the_minimum_but_not_longer_than_its_patience(pool, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("paceline.collect.batching.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("paceline.collect.batching.SMOOTHING", 1.0)
    scripted = Scripted(pool, [4, 2, 0, 1])
    batching = AdaptiveBatching(scripted, BatchingConfig(minimum=0.5, maximum=0.75, patience=0.5))
    assert len(batching.receive(8)) == 4
    now[0] += 0.2  # a decision
    assert len(batching.receive(8)) == 2, "fewer than the minimum, after the wait"
    now[0] += 0.4
    assert len(batching.receive(8)) == 1, "nobody was ready: then the first who is"
    waits = [timeout for _, _, timeout in scripted.asked]
    assert waits[0] == 0.0, "nothing is known at the start"
    assert waits[1:3] == pytest.approx([0.1, 0.2]), "half of what a decision takes"
    assert scripted.asked[3] == (1, 6, None)
    assert all(asked[:2] == (4, 6) for asked in scripted.asked[:3])


def test_waits_longer_where_a_worker_has_other_environments_to_step_and_cores_are_few(pool, monkeypatch):
    """By default: half of the slots, or all where these cores learn meanwhile, and up to four decisions' time, instead
    of an eighth and one."""
    scripted = Scripted(pool, [4, 4, 4, 4, 4])
    cases = (
        (8, 2, False, 4, 4.0),
        (8, 2, True, 8, 4.0),
        (8, 16, False, 1, 1.0),
        (8, 16, True, 1, 1.0),
        (1, 2, True, 2, 1.0),
    )
    for shared, cores, learning, minimum, patience in cases:
        monkeypatch.setattr("paceline.collect.batching.available_core_ids", lambda cores=cores: list(range(cores)))
        scripted.spec = dataclasses.replace(pool.spec, envs_per_worker=shared)
        batching = AdaptiveBatching(scripted, BatchingConfig(), learner_shares_cores=learning)
        batching.receive(8)
        assert scripted.asked[-1][0] == minimum and batching._patience == patience
    with make_pool("gym:CartPole-v1", PoolConfig(kind="process", num_envs=4, workers=2)) as two_each:
        assert two_each.spec.envs_per_worker == 2


def test_what_comes_before_a_decision_is_no_part_of_it(pool, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("paceline.collect.batching.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("paceline.collect.batching.SMOOTHING", 1.0)
    scripted = Scripted(pool, [4, 4])
    batching = AdaptiveBatching(scripted, BatchingConfig(minimum=0.5, patience=0.5))
    batching.receive(8)
    now[0] += 5.0  # a wait for the learner
    batching.begin_decision()
    now[0] += 0.2
    batching.receive(8)
    assert scripted.asked[1][2] == pytest.approx(0.1)


def test_who_steps_together_is_waited_for_without_interruption(pool):
    """There is no part of them to be had earlier, and a time-out would keep a pool from the fastest way to wait."""
    scripted = Scripted(pool, [8, 8])
    scripted.spec = dataclasses.replace(pool.spec, in_step=True)
    AdaptiveBatching(scripted, BatchingConfig()).receive(8)
    AdaptiveBatching(scripted, BatchingConfig(minimum=0.5)).receive(8)
    assert scripted.asked == [(1, 8, None), (4, 8, 0.0)], "who asks for a minimum gets it"


def test_environments_of_an_envpool_step_together_unless_batches_are_smaller():
    pytest.importorskip("envpool")
    task = "envpool:CartPole-v1"
    for env, in_step in ((task, True), (f"{task}?batch_size=1", False)):
        with make_pool(env, PoolConfig(num_envs=4)) as envpool:
            assert envpool.spec.in_step is in_step


def test_what_is_no_decision_is_not_learned_from(pool, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("paceline.collect.batching.time.perf_counter", lambda: now[0])
    scripted = Scripted(pool, [4, 4])
    batching = AdaptiveBatching(scripted, BatchingConfig())
    batching.receive(8)
    batching.pause()
    now[0] += 100.0
    batching.receive(8)
    assert scripted.asked[1][2] == 0.0


def test_asks_for_no_more_than_there_is_and_is_wanted(pool):
    """A wait for more slots than are in flight would never end."""
    scripted = Scripted(pool, [1, 2])
    batching = AdaptiveBatching(scripted, BatchingConfig(minimum=0.5))
    batching.receive(in_flight=2)
    batching.receive(in_flight=8, most=3)
    assert [asked[:2] for asked in scripted.asked] == [(2, 8), (3, 3)]


def test_does_not_wait_beyond_what_is_left(pool):
    """Mistake 23: a deadline is kept even if no simulator answers at all."""
    scripted = Scripted(pool, [0, 0])
    batching = AdaptiveBatching(scripted, BatchingConfig())
    assert len(batching.receive(8, seconds_left=0.05)) == 0
    assert all(timeout is not None and timeout <= 0.05 for _, _, timeout in scripted.asked)


def test_real_pool_serves_every_slot(pool):
    batching = AdaptiveBatching(pool, BatchingConfig())
    seen = np.zeros(8, int)
    for _ in range(40):
        batch = batching.receive(8)
        seen[batch.slots] += 1
        pool.send(np.zeros(len(batch), np.int64), batch.slots)
    assert (seen > 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"minimum": 0.0}, "above 0"),
        ({"minimum": 0.9, "maximum": 0.5}, "not be above"),
        ({"patience": -1.0}, "least 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        BatchingConfig(**options)
