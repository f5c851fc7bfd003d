"""Which rank is silent, which rank notices it, and which ranks are not blamed."""

from __future__ import annotations

import queue
import threading

import pytest
import torch.distributed as dist

from paceline.distributed.config import GroupConfig
from paceline.distributed.heartbeat import RankHeartbeat, SilenceTimer, StoreReply
from paceline.errors import UsageError


def observe(*replies: tuple[int, int, int]) -> tuple[float, float]:
    """Seconds of silence of the store and of the watched rank, after one reply (number, watched, beats) a second."""
    silence = SilenceTimer()
    for number, watched, beats in replies:
        silence.observe(StoreReply(number, watched, beats, "host"), 1.0)
    return silence.store, silence.rank


def test_a_counter_that_does_not_change_is_silence():
    assert observe((1, 1, 7), (2, 1, 8), (3, 1, 8), (4, 1, 8)) == (0.0, 2.0)
    assert observe((1, 1, 7), (2, 1, 7), (3, 1, 7), (4, 1, 8)) == (0.0, 0.0)


def test_a_silent_store_is_not_the_silence_of_the_watched_rank():
    """Rank 0 serves the store. When rank 0 is stopped, nothing is known about other ranks, so none is blamed."""
    assert observe((1, 1, 7), (2, 1, 8), (2, 1, 8), (2, 1, 8)) == (2.0, 0.0)


def test_a_rank_that_is_still_starting_is_not_silent():
    assert observe((1, 1, 0), (2, 1, 0), (3, 1, 0)) == (0.0, 0.0)


def test_another_rank_that_is_watched_begins_without_silence():
    assert observe((1, 1, 7), (2, 1, 7), (3, 2, 7)) == (0.0, 0.0)


class Watched:
    """Heartbeats of several ranks in one process."""

    def __init__(self, size: int, seconds: float = 1.5) -> None:
        self.lost: queue.Queue[tuple[int, str]] = queue.Queue()
        store = dist.PrefixStore("heartbeat", dist.HashStore())
        for rank in range(size):
            store.set(f"host/{rank}", f"machine-{rank}")
        self.ranks = [
            RankHeartbeat(store, rank, size, seconds=seconds, server="rank 0", lost=self._note(rank))
            for rank in range(size)
        ]

    def _note(self, rank: int):
        return lambda message, store_is_gone: self.lost.put((rank, message))

    def close(self) -> None:
        for rank in self.ranks:
            rank.stop()


@pytest.fixture
def four():
    ranks = Watched(4)
    yield ranks
    ranks.close()


def test_one_rank_notices_and_names_the_silent_one(four):
    four.ranks[2].stop()
    noticed_by, message = four.lost.get(timeout=30)
    assert noticed_by == 1
    assert message.startswith("rank 2 on machine-2 has not answered for ")
    assert "stopped, hung or disconnected" in message


def test_a_rank_that_has_left_is_not_missed_and_the_one_after_it_is_watched(four):
    """At the end of a run a rank may leave while others still save."""
    four.ranks[2].leave()
    four.ranks[3].stop()
    noticed_by, message = four.lost.get(timeout=30)
    assert noticed_by == 1 and message.startswith("rank 3 on machine-3 ")


def test_rank_0_leaves_last():
    """It may serve the store, which the other ranks need until they have left."""
    four = Watched(4, seconds=60)
    first = threading.Thread(target=four.ranks[0].leave)
    first.start()
    for rank in four.ranks[1:]:
        first.join(0.2)
        assert first.is_alive()
        rank.leave()
    first.join(30)
    assert not first.is_alive() and four.lost.empty()
    four.close()


def test_a_heartbeat_of_zero_seconds_is_refused():
    with pytest.raises(UsageError, match="group.heartbeat_seconds must be above 0, got 0"):
        GroupConfig(heartbeat_seconds=0)
