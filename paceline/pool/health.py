"""What a pool knows of its workers' well-being: replacements, lost episodes, memory."""

from __future__ import annotations

import logging

import psutil

log = logging.getLogger(__name__)

WATCH_SECONDS = 5.0
SETTLE_SECONDS = 60.0
"""How long a worker may grow at first: many simulators take most of their memory when their first episode begins."""


class Health:
    """Counters for reports, and a watch on memory: a simulator that leaks is named long before the machine is full."""

    def __init__(self, leak_megabytes: float) -> None:
        self.restarts = 0
        self.lost_episodes = 0
        self.start_seconds = 0.0
        """From the pool's construction to the order for the first observations."""
        self.megabytes: dict[int, float] = {}
        """Resident memory of each worker, by process id, simulators' own processes included."""
        self._leak_megabytes = leak_megabytes
        self._first_seen: dict[int, float] = {}
        self._baseline: dict[int, tuple[float, float]] = {}
        """The largest size while a worker settled, and when that was over."""
        self._warned_at: dict[int, float] = {}
        self._next_watch = 0.0

    def watch(self, pids: list[int], now: float) -> None:
        """Measure, at most every `WATCH_SECONDS`, and report whoever grew too much since it had settled."""
        if now < self._next_watch:
            return
        self._next_watch = now + WATCH_SECONDS
        self.megabytes = {pid: size for pid in pids if (size := tree_megabytes(pid)) > 0}
        for pid, size in self.megabytes.items():
            if now - self._first_seen.setdefault(pid, now) <= SETTLE_SECONDS:
                self._baseline[pid] = max(size, self._baseline.get(pid, (0.0, now))[0]), now
                continue
            first_size, first_time = self._baseline[pid]
            warned = self._warned_at.get(pid, first_size)
            if size - warned > self._leak_megabytes:
                self._warned_at[pid] = size
                rate = (size - first_size) / max(now - first_time, 1e-9) * 60
                log.warning(
                    "worker process %d has grown from %.0f to %.0f MB (%.1f MB a minute): its simulators may leak",
                    pid,
                    first_size,
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
