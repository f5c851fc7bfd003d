"""The heartbeat of ranks: a rank that is stopped, hung or disconnected is noticed and named.

Every rank increments its own counter in the store, and watches the counter of the next rank that has not left. So every
rank is watched, and each rank watches one other, however many ranks there are.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist


class StoreReply(NamedTuple):
    """The store's latest reply."""

    number: int
    """How many replies there have been."""
    watched: int
    """The rank that is watched."""
    beats: int
    """Heartbeats of that rank; 0 before its first."""
    host: str
    """The machine of that rank."""


class SilenceTimer:
    """For how long the store and the watched rank have been silent. It never waits, and reads no clock."""

    def __init__(self) -> None:
        self.store = self.rank = 0.0
        """Seconds since the store last replied, and since the watched rank's counter last changed."""
        self._last: StoreReply | None = None

    def observe(self, reply: StoreReply, seconds: float) -> None:
        """The latest reply, `seconds` after the last call."""
        last, self._last = self._last, reply
        if last is None:
            return
        if reply.number == last.number:
            self.store += seconds  # meanwhile nothing is known about the rank
            return
        self.store = 0.0
        same = (reply.watched, reply.beats) == (last.watched, last.beats)
        # A rank without a heartbeat is not silent: it still starts (imports, connections).
        self.rank = self.rank + seconds if same and reply.beats > 0 else 0.0


class RankHeartbeat:
    """This rank's heartbeat. It calls `lost` once, from a thread, with the problem and whether only the store is gone.

    One thread talks to the store, and may block for ever if the process that serves the store is stopped. The other
    thread decides who is lost, and waits only for time to pass.
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
        """In `store`, `host/R` names the machine of rank R. `server` names the process that serves the store."""
        # A connection of its own: a thread that waits for a key keeps its connection busy.
        self._store: dist.Store = store.clone()  # type: ignore[attr-defined]
        self._rank, self._size, self._seconds, self._server, self._lost = rank, size, seconds, server, lost
        self._interval = min(3.0, seconds / 20)
        self._reply = StoreReply(0, (rank + 1) % size, 0, "")
        self._error: str | None = None
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"paceline-heartbeat-{target.__name__}", daemon=True)
            for target in (self._exchange, self._watch)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop without notice: the rank that watches this one will report it as lost."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(2 * self._interval)

    def leave(self) -> None:
        """Stop in good order. Rank 0 leaves last, because it may serve the store."""
        self.stop()
        with contextlib.suppress(RuntimeError):  # a rank has failed: wait no longer
            self._store.set(f"left/{self._rank}", "")
            if self._rank == 0:
                others = [f"left/{rank}" for rank in range(1, self._size)]
                self._store.wait(others, timedelta(seconds=self._seconds))

    def _exchange(self) -> None:
        """Increment this rank's counter and read the watched rank's, again and again."""
        try:
            while not self._stopped.is_set():
                self._store.add(f"beat/{self._rank}", 1)
                self._reply = self._ask_store()
                self._stopped.wait(self._interval)
        except RuntimeError as error:
            self._error = str(error).strip().splitlines()[0]

    def _ask_store(self) -> StoreReply:
        last = self._reply
        watched, host = last.watched, last.host
        while watched != self._rank and self._store.check([f"left/{watched}"]):
            watched, host = (watched + 1) % self._size, ""
        beats = self._store.add(f"beat/{watched}", 0)
        if beats > 0 and not host:
            host = self._store.get(f"host/{watched}").decode()
        return StoreReply(last.number + 1, watched, beats, host)

    def _watch(self) -> None:
        silence, then = SilenceTimer(), time.monotonic()
        # A heartbeat is seen up to one interval late, and missed up to one interval late.
        limit = self._seconds - 2 * self._interval
        while not self._stopped.wait(self._interval):
            # If this process itself was stopped or busy, that time does not count as another rank's silence.
            now = time.monotonic()
            passed, then = min(now - then, 2 * self._interval), now
            reply = self._reply
            silence.observe(reply, passed)
            if self._error is not None:
                self._report(f"{self._server} is gone ({self._error})", store_is_gone=True)
            elif silence.store >= limit:
                self._report(_silent(self._server, silence.store))
            elif silence.rank >= limit and reply.watched != self._rank:
                self._report(_silent(f"rank {reply.watched} on {reply.host}", silence.rank))

    def _report(self, message: str, store_is_gone: bool = False) -> None:
        if not self._stopped.is_set():
            self._stopped.set()
            self._lost(message, store_is_gone)


def _silent(name: str, seconds: float) -> str:
    return f"{name} has not answered for {seconds:.0f} s: it is stopped, hung or disconnected"
