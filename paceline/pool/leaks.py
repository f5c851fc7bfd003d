"""Detects workers whose memory grows without end, long before the machine is full."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import psutil

log = logging.getLogger(__name__)

CHECK_SECONDS = 5.0
SETTLE_SECONDS = 60.0
"""Time in which a worker may grow freely. Many simulators allocate most of their memory in their first episode."""


@dataclass
class _Worker:
    since: float
    """Time of the first measurement."""
    settled_at: float | None = None
    settled: float = 0.0
    """The most megabytes until then."""
    reported: float = 0.0
    """Megabytes at the last warning, or `settled`."""


class LeakDetector:
    """Warns about workers that have grown by more than `leak_megabytes` since they settled."""

    def __init__(self, leak_megabytes: float) -> None:
        self._leak_megabytes = leak_megabytes
        self._workers: dict[int, _Worker] = {}
        self._next_check = 0.0

    def check(self, pids: list[int], now: float) -> None:
        """Measure the processes `pids`, whose simulators are made, at most every `CHECK_SECONDS`."""
        if now < self._next_check:
            return
        self._next_check = now + CHECK_SECONDS
        sizes = {pid: size for pid in pids if (size := tree_megabytes(pid)) > 0}
        self._workers = {pid: self._workers.get(pid) or _Worker(since=now) for pid in sizes}
        for pid, size in sizes.items():
            self._compare(pid, self._workers[pid], size, now)

    def _compare(self, pid: int, worker: _Worker, size: float, now: float) -> None:
        if worker.settled_at is None:
            worker.settled = worker.reported = max(worker.settled, size)
            if now - worker.since >= SETTLE_SECONDS:  # after this measurement: it may be the first for a long time
                worker.settled_at = now
        elif size - worker.reported > self._leak_megabytes:
            worker.reported = size
            rate = (size - worker.settled) / max(now - worker.settled_at, 1e-9) * 60
            growth = f"from {worker.settled:.0f} to {size:.0f} MB ({rate:.1f} MB a minute)"
            log.warning("worker process %d has grown %s: its simulators may leak", pid, growth)


def tree_megabytes(pid: int) -> float:
    """Resident memory of a process and its descendants. 0 if it has ended."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return sum(member.memory_info().rss for member in family) / 2**20
    except psutil.Error:
        return 0.0
