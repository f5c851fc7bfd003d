"""VER's preemption: ranks compute the deadline of equation 1 and keep it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.distributed.config import PreemptionConfig
from paceline.distributed.preemption import LEAST_GAIN, ByDeadline, best_deadline, make_preemption
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from tests.integration.ranks import on_ranks

GOAL = 100


@settings(max_examples=200)
@given(
    step_times=st.lists(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=4), min_size=1, max_size=6),
    learning=st.floats(0.0, 20.0),
)
def test_the_deadline_is_the_best_of_all_times(step_times, learning):
    """Equation 1 as in the paper: S / (Time(S) + LT) over all S, with the time per step of every environment."""
    rates = np.array([sum(1 / seconds for seconds in rank) for rank in step_times])
    deadline = best_deadline(rates, learning, GOAL)

    def steps_within(seconds: float) -> float:
        return sum(min(GOAL, sum(seconds / each for each in rank)) for rank in step_times)

    everybody = GOAL / rates.min()
    waits = deadline == float("inf")
    found = steps_within(everybody) * (LEAST_GAIN if waits else 1.0) / (everybody + learning)
    found = found if waits else steps_within(deadline) / (deadline + learning)
    for seconds in np.linspace(1e-3, GOAL / rates.min(), 500):
        assert steps_within(seconds) / (seconds + learning) <= found * (1 + 1e-9)


def test_even_ranks_are_not_preempted():
    """Nor are ranks that differ only a little, as any two measurements do."""
    assert best_deadline(np.full(8, 50.0), 1.0, GOAL) == float("inf")
    assert best_deadline(np.array([50.0, 46.0]), 1.0, GOAL) == float("inf")


def test_a_slow_rank_is_preempted_unless_learning_takes_most_of_the_time():
    """7 ranks have all steps after 1 s, the eighth after 10 s. Waiting 9 s pays only if learning takes long."""
    rates = np.array([100.0] * 7 + [10.0])
    assert best_deadline(rates, 0.5, GOAL) == pytest.approx(1.0)
    assert best_deadline(rates, 500.0, GOAL) == float("inf")


def test_a_rank_that_collected_nothing_does_not_stop_the_others():
    assert best_deadline(np.array([100.0, 0.0]), 1.0, GOAL) == pytest.approx(1.0)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_deadline_allows_for_a_rank_that_stops_late():
    """A rank that always stops 0.2 s late gets a deadline 0.2 s earlier, and is on time from then on."""
    clock = Clock()
    rank = ByDeadline(Group(RankInfo(), torch.device("cpu"), None), GOAL, now=clock)
    rank._deadline = 5.0
    for expected in (5.0, 4.8, 4.8, 4.8):
        rank.begin(0)
        assert rank.seconds_left() == pytest.approx(expected)
        clock.now += rank.seconds_left() + 0.2
        assert rank.should_stop(10)
        rank.finished(10)


def test_steps_from_before_are_not_part_of_the_rate():
    """After a checkpoint a rollout begins with steps that were collected before."""
    clock = Clock()
    rank = ByDeadline(Group(RankInfo(), torch.device("cpu"), None), GOAL, now=clock)
    rank.begin(20)
    clock.now += 4.0
    rank.finished(GOAL)
    assert rank._rate == pytest.approx(20.0)


@settings(max_examples=100)
@given(rates=st.lists(st.floats(1.0, 500.0), min_size=1, max_size=6), learning=st.floats(0.0, 20.0))
def test_concurrent_learning_gives_slow_ranks_more_time(rates, learning):
    """An iteration takes the longer of learning and collection, so steps collected during learning cost no time."""
    rates = np.array(rates)
    deadline = best_deadline(rates, learning, GOAL, concurrent=True)
    gain = 1.0
    if deadline == float("inf"):
        deadline, gain = max(GOAL / rates.min(), learning), LEAST_GAIN
    steps = gain * np.minimum(rates * deadline, GOAL).sum() / max(deadline, learning)
    for seconds in np.linspace(1e-3, GOAL / rates.min(), 300):
        assert np.minimum(rates * seconds, GOAL).sum() / max(seconds, learning) <= steps * (1 + 1e-9)


def test_one_rank_has_no_deadline():
    rank = ByDeadline(Group(RankInfo(), torch.device("cpu"), None), GOAL)
    rank.begin(0)
    assert rank.seconds_left() is None and not rank.should_stop(1)
    rank.finished(GOAL)
    rank.learned()
    assert rank.seconds_left() is None


def test_the_kind_is_the_systems_own_unless_it_is_named():
    group = Group(RankInfo(), torch.device("cpu"), None)
    made = {
        (kind, own): type(make_preemption(PreemptionConfig(kind=kind), group, GOAL, own, deterministic=False)).__name__
        for kind in ("auto", "count", "deadline")
        for own in ("count", "deadline")
    }
    assert made["auto", "count"] == made["count", "count"] == made["count", "deadline"] == "ByCount"
    assert made["auto", "deadline"] == made["deadline", "count"] == made["deadline", "deadline"] == "ByDeadline"
    deterministic = make_preemption(PreemptionConfig(), group, GOAL, "deadline", deterministic=True)
    assert deterministic.seconds_left() is None, "the result must not depend on speed"
    with pytest.raises(UsageError, match="allowed: auto, count, deadline"):
        PreemptionConfig(kind="luck")  # type: ignore[arg-type]


def test_real_ranks_are_preempted():
    """Two ranks collect fast, one slowly. From the second rollout on, the slow rank stops with the others. Each has a
    clock of its own that only steps move, so that a busy machine changes nothing."""

    def work():
        group, clock = Group.join("cpu"), [0.0]
        preemption = ByDeadline(group, 50, now=lambda: clock[0])
        taken = []
        for _ in range(3):
            preemption.begin(0)
            collected = 0
            while collected < 50 and not preemption.should_stop(collected):
                clock[0] += 0.02 if group.rank == 2 else 0.001
                collected += 1
            preemption.finished(collected)
            group.any(False)
            preemption.learned()
            taken.append(collected)
        group.close()
        return taken

    *fast, slow = on_ranks(3, work)
    assert slow == [50, 3, 3]
    assert fast == [[50, 50, 50]] * 2
