"""Ranks that notice when another one is stopped, hung or cut off.

Every rank counts up a number in the store, and watches the number of the next rank that has not left. Together they watch all
ranks, each one rank, however many there are.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist


@dataclass(frozen=True)
class Answer:
    """What the store said last."""

    number: int
    """How many times the store has answered."""
    watched: int
    """The rank that is watched."""
    count: int
    """That rank's number; 0 before its first heartbeat."""
    host: str
    """The machine of that rank."""


class Silence:
    """Who is silent, and for how many seconds. Decides from what it is shown, and waits for nothing."""

    def __init__(self) -> None:
        self.store = self.rank = 0.0
        """Seconds since the store answered, and since the watched rank's number changed."""
        self._last: Answer | None = None

    def observe(self, answer: Answer, seconds: float) -> None:
        """`seconds` after the last time, `answer` is the latest."""
        last, self._last = self._last, answer
        if last is None:
            return
        if answer.number == last.number:
            self.store += seconds  # nothing is known of the rank meanwhile
            return
        self.store = 0.0
        same = (answer.watched, answer.count) == (last.watched, last.count)
        # A rank that is still starting is not silent: it waits for its turn to import and to connect.
        self.rank = self.rank + seconds if same and answer.count > 0 else 0.0


class RankHeartbeat:
    """This rank's heartbeat. `lost` is called once, from a thread, with what is wrong and whether only the store is gone.

    One thread speaks to the store and may wait there for ever, if the process that serves the store is stopped. Another
    decides, and never waits for anything but the time.
    """

    def __init__(
        self,
        store: dist.PrefixStore,
        rank: int,
        size: int,
        *,
        seconds: float,
        server: str,
        lost: Callable[[str, bool], None],
    ) -> None:
        """`host/R` in `store` is the name of the machine of rank R, and `server` names the process that serves it."""
        # A connection of its own: a thread that waits for a key keeps its connection busy.
        self._store: dist.Store = store.clone()  # type: ignore[attr-defined]
        self._rank, self._size, self._seconds, self._server, self._lost = rank, size, seconds, server, lost
        self._interval = min(3.0, seconds / 20)
        self._answer = Answer(0, (rank + 1) % size, 0, "")
        self._error: str | None = None
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"paceline-heartbeat-{target.__name__}", daemon=True)
            for target in (self._exchange, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the heartbeat without a word: the others are going to miss this rank."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * self._interval)

    def leave(self) -> None:
        """End the heartbeat in good order. Rank 0 may serve the store, and waits for the others to leave before it."""
        self.stop()
        with contextlib.suppress(RuntimeError):  # others that are not in order are not waited for any longer
            self._store.set(f"left/{self._rank}", "")
            if self._rank == 0:
                others = [f"left/{rank}" for rank in range(1, self._size)]
                self._store.wait(others, timedelta(seconds=self._seconds))

    def _exchange(self) -> None:
        """Count up, and see what the watched rank's number is."""
        try:
            while not self._stopped.is_set():
                self._store.add(f"beat/{self._rank}", 1)
                self._answer = self._look()
                self._stopped.wait(self._interval)
        except RuntimeError as error:
            self._error = str(error).strip().splitlines()[0]

    def _look(self) -> Answer:
        last = self._answer
        watched, host = last.watched, last.host
        while watched != self._rank and self._store.check([f"left/{watched}"]):
            watched, host = (watched + 1) % self._size, ""
        count = self._store.add(f"beat/{watched}", 0)
        if count > 0 and not host:
            host = self._store.get(f"host/{watched}").decode()
        return Answer(last.number + 1, watched, count, host)

    def _watch(self) -> None:
        silence, then = Silence(), time.monotonic()
        # It takes up to an interval until a heartbeat is seen, and another until it is missed.
        limit = self._seconds - 2 * self._interval
        while not self._stopped.wait(self._interval):
            # This process may have been stopped itself, or kept busy: that time is no one else's silence.
            now = time.monotonic()
            passed, then = min(now - then, 2 * self._interval), now
            answer = self._answer
            silence.observe(answer, passed)
            if self._error is not None:
                self._end(f"{self._server} is gone ({self._error})", True)
            elif silence.store >= limit:
                self._end(_silent(self._server, silence.store), False)
            elif silence.rank >= limit and answer.watched != self._rank:
                self._end(_silent(f"rank {answer.watched} on {answer.host}", silence.rank), False)

    def _end(self, message: str, store_is_gone: bool) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._lost(message, store_is_gone)


def _silent(who: str, seconds: float) -> str:
    return f"{who} has not answered for {seconds:.0f} s: it is stopped, hung or cut off"
