"""What a pool knows of its workers' well-being: lost episodes, memory."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import psutil

log = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
SETTLE_SECONDS = 60.0
"""How long a worker may grow at first: many simulators take most of their memory when their first episode begins."""


@dataclass
class Watched:
    """A worker's memory, in megabytes."""

    since: float
    """When it was first measured."""
    settled_at: float | None = None
    settled: float = 0.0
    """The most until then."""
    warned: float = 0.0
    """At the latest warning; before the first, as `settled`."""


class Health:
    """Counters for reports, and a watch on memory: a simulator that leaks is named long before the machine is full."""

    def __init__(self, leak_megabytes: float) -> None:
        self.lost_episodes = 0
        self.start_seconds = 0.0
        """From the pool's construction to the order for the first observations."""
        self.megabytes: dict[int, float] = {}
        """Resident memory of each worker whose simulators are made, by process id, their own processes included."""
        self._leak_megabytes = leak_megabytes
        self._watched: dict[int, Watched] = {}
        self._next_watch = 0.0

    def watch(self, pids: list[int], now: float) -> None:
        """Measure those whose simulators are made, at most every `WATCH_SECONDS`, and report whoever grew too much since it had settled."""
        if now < self._next_watch:
            return
        self._next_watch = now + WATCH_SECONDS
        self.megabytes = {pid: size for pid in pids if (size := tree_megabytes(pid)) > 0}
        self._watched = {pid: self._watched.get(pid, Watched(since=now)) for pid in self.megabytes}
        for pid, size in self.megabytes.items():
            self._compare(pid, self._watched[pid], size, now)

    def _compare(self, pid: int, worker: Watched, size: float, now: float) -> None:
        if worker.settled_at is None:
            worker.settled = worker.warned = max(worker.settled, size)
            if now - worker.since >= SETTLE_SECONDS:  # only now: nothing may have been measured in between
                worker.settled_at = now
        elif size - worker.warned > self._leak_megabytes:
            worker.warned = size
            rate = (size - worker.settled) / max(now - worker.settled_at, 1e-9) * 60
            log.warning(
                "worker process %d has grown from %.0f to %.0f MB (%.1f MB a minute): its simulators may leak",
                pid,
                worker.settled,
                size,
                rate,
            )


def tree_megabytes(pid: int) -> float:
    """Resident memory of a process and its descendants; 0 where it is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(member.memory_info().rss for member in family) / 2**20
    except psutil.Error:
        return 0.0
