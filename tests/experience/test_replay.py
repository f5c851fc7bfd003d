"""The replay against a plain list of what was inserted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import UsageError
from paceline.experience.config import ReplayConfig
from paceline.experience.replay import Replay

CPU = torch.device("cpu")


def numbered(first: int, count: int) -> dict[str, np.ndarray]:
    names = np.arange(first, first + count, dtype=np.float32)
    return {"obs": np.stack([names, -names], 1), "reward": names}


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 20), st.booleans(), st.lists(st.integers(0, 15), min_size=1, max_size=12))
def test_what_is_drawn_is_among_the_latest_and_whole(seed, capacity, prioritized, counts):
    torch.manual_seed(seed)
    replay, inserted = Replay(ReplayConfig(capacity=capacity, prioritized=prioritized), CPU), 0
    for count in (min(count, capacity) for count in counts):
        replay.add(numbered(inserted, count))
        inserted += count
        assert len(replay) == min(inserted, capacity) and replay.inserted == inserted
        if inserted == 0:
            continue
        drawn = replay.draw(64)
        names = drawn.rows["reward"]
        assert (names >= inserted - len(replay)).all() and (names < inserted).all()
        assert torch.equal(drawn.rows["obs"], torch.stack([names, -names], 1)), "rows are not mixed"
        assert torch.equal(drawn.numbers.float(), names)
        replay.set_priorities(drawn, torch.rand(64))


def test_everything_is_drawn_equally_often_without_priorities():
    replay = Replay(ReplayConfig(capacity=10, prioritized=False), CPU)
    replay.add(numbered(0, 7))
    counts = torch.bincount(replay.draw(70_000).rows["reward"].long(), minlength=7) / 10_000
    torch.testing.assert_close(counts, torch.ones(7), atol=0.05, rtol=0)


def test_priorities_decide_how_often_and_weights_correct_for_it():
    """Exact importance weights 1 / (C p): the weighted mean of anything is its mean over all that is there."""
    torch.manual_seed(0)
    replay = Replay(ReplayConfig(capacity=8, exponent=1.0), CPU)
    replay.add(numbered(0, 4))
    drawn = replay.draw(4)
    assert sorted(drawn.rows["reward"].tolist()) == [0.0, 1.0, 2.0, 3.0], "an equal part of the total each"
    replay.set_priorities(drawn, drawn.rows["reward"] + 1.0)
    drawn = replay.draw(100_000)
    shares = torch.bincount(drawn.rows["reward"].long(), minlength=4) / 100_000
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.01, rtol=0)
    assert (drawn.weight * drawn.rows["reward"]).mean().item() == pytest.approx(1.5, rel=0.02)


def test_new_transitions_have_the_highest_priority():
    """Mistake 20: not 1, but the most that any had."""
    replay = Replay(ReplayConfig(capacity=100, exponent=1.0), CPU)
    replay.add(numbered(0, 10))
    drawn = replay.draw(10)
    replay.set_priorities(drawn, torch.full((10,), 50.0))
    replay.add(numbered(10, 10))
    share = (replay.draw(10_000).rows["reward"] >= 10).float().mean().item()
    assert share == pytest.approx(0.5, abs=0.02)


def test_a_priority_that_comes_too_late_is_not_given_to_the_successor():
    replay = Replay(ReplayConfig(capacity=4, exponent=1.0), CPU)
    replay.add(numbered(0, 4))
    drawn = replay.draw(4)
    replay.add(numbered(4, 2))  # over 0 and 1
    replay.set_priorities(drawn, torch.full((4,), 1e-6))
    names = replay.draw(1000).rows["reward"]
    assert (names >= 4).all(), "2 and 3 have next to none, 4 and 5 that of the new"


def test_what_was_drawn_does_not_change_with_the_ring():
    """Mistake 20: no aliases."""
    replay = Replay(ReplayConfig(capacity=4), CPU)
    arrays = numbered(0, 4)
    replay.add(arrays)
    drawn = replay.draw(8)
    before = drawn.rows["reward"].clone()
    arrays["reward"][:] = 99.0
    replay.add(numbered(100, 4))
    assert torch.equal(drawn.rows["reward"], before)
    assert set(replay.draw(50).rows["reward"].tolist()) <= {100.0, 101.0, 102.0, 103.0}


@pytest.mark.parametrize("prioritized", [True, False])
@pytest.mark.parametrize("inserted", [3, 11])
def test_a_restored_replay_goes_on_as_the_saved_one(prioritized, inserted):
    config = ReplayConfig(capacity=8, prioritized=prioritized)
    one = Replay(config, CPU)
    for first in range(inserted):
        one.add(numbered(first, 1))
    one.set_priorities(one.draw(6), torch.rand(6))
    other = Replay(config, CPU)
    other.load_state_dict(one.state_dict())
    for replay in (one, other):
        replay.add(numbered(inserted, 2))
    draws = [replay.draw(100, torch.Generator().manual_seed(1)) for replay in (one, other)]
    assert torch.equal(draws[0].rows["obs"], draws[1].rows["obs"])
    assert torch.equal(draws[0].weight, draws[1].weight) and len(one) == len(other)


@pytest.mark.parametrize("prioritized", [True, False])
def test_dropped_transitions_are_not_drawn(prioritized):
    replay = Replay(ReplayConfig(capacity=8, prioritized=prioritized), CPU)
    replay.add(numbered(0, 8))
    replay.add(numbered(8, 3))
    replay.drop_oldest(5)
    assert len(replay) == 3 and set(replay.draw(200).rows["reward"].tolist()) == {8.0, 9.0, 10.0}
    replay.add(numbered(11, 8))
    assert len(replay) == 8 and set(replay.draw(500).rows["reward"].tolist()) == set(range(11, 19))


def test_a_smaller_one_takes_over_the_latest():
    one = Replay(ReplayConfig(capacity=8), CPU)
    one.add(numbered(0, 8))
    one.add(numbered(8, 3))
    small = Replay(ReplayConfig(capacity=4), CPU)
    small.load_state_dict(one.state_dict())
    assert set(small.draw(200).rows["reward"].tolist()) == {7.0, 8.0, 9.0, 10.0}


def test_memory_is_what_was_computed():
    replay = Replay(ReplayConfig(capacity=1000), CPU)
    replay.add(numbered(0, 1))
    assert replay.bytes == 1000 * (2 * 4 + 4)


def test_bad_settings_are_refused():
    for options in ({"capacity": 1}, {"exponent": 2.0}, {"correction": -0.1}):
        with pytest.raises(UsageError, match="must be"):
            ReplayConfig(**options)
    with pytest.raises(UsageError, match="do not fit"):
        Replay(ReplayConfig(capacity=4), CPU).add(numbered(0, 5))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, bool])
def test_unsigned_numbers_come_back_as_they_were(dtype):
    """Depth cameras give 16 bits. PyTorch cannot index them as they are."""
    highest = 1 if dtype is bool else np.iinfo(dtype).max
    values = np.array([[0, highest], [highest, 0], [1, 1]], dtype)
    replay = Replay(ReplayConfig(capacity=4), torch.device("cpu"))
    replay.add({"obs/depth": values})
    other = Replay(ReplayConfig(capacity=4), torch.device("cpu"))
    other.load_state_dict(replay.state_dict())
    for one in (replay, other):
        drawn = one.draw(50)
        np.testing.assert_array_equal(drawn.rows["obs/depth"].numpy(), values[drawn.places.numpy()])
        np.testing.assert_array_equal(one.rows(0, 3)["obs/depth"].numpy(), values)
        assert drawn.rows["obs/depth"].numpy().dtype == dtype
