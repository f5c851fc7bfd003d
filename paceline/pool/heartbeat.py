"""What each worker is doing, in shared memory, and how the pool detects hung workers from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.pool.config import PoolConfig

IDLE = -1
"""In place of an environment's index: the worker waits for a command."""

STEP, RESET, MAKE, SAVE, RESTORE = range(5)
PHASES = ("step", "reset", "make", "save", "restore")
"""What a worker does with its current environment, by the number in `Heartbeat.phase`."""

MIN_CHECKS = 4
"""A worker counts as hung only after this many checks without progress. After the pool itself was busy or suspended, it
must look again before it judges."""

Progress = tuple[float, int, int]
"""Start time, environment and phase of a worker's current operation."""


class Heartbeat:
    """One cell per worker: its current environment, the start time, and the phase."""

    def __init__(self, buffer: Any, num_workers: int) -> None:
        self.announce_seconds = np.ndarray(1, np.float64, buffer=buffer)
        """Time between two messages about finished steps. The pool writes it, the workers read it."""
        self.since = np.ndarray(num_workers, np.float64, buffer=buffer, offset=8)
        self.env = np.ndarray(num_workers, np.int32, buffer=buffer, offset=8 + 8 * num_workers)
        self.phase = np.ndarray(num_workers, np.int32, buffer=buffer, offset=8 + 12 * num_workers)

    def clear(self, worker: int | slice) -> None:
        self.env[worker], self.phase[worker] = IDLE, STEP

    def progress(self, worker: int) -> Progress:
        return float(self.since[worker]), int(self.env[worker]), int(self.phase[worker])

    def cells(self) -> tuple[Any, Any]:
        """`since` and `env` for writing single cells cheaply."""
        return memoryview(self.since), memoryview(self.env)  # type: ignore[arg-type]

    @staticmethod
    def nbytes(num_workers: int) -> int:
        return -(-(8 + 16 * num_workers) // 64) * 64


class HangDetector:
    """Detects workers that have work and make no progress: stuck in a simulator, or stopped before they began.

    The time limit holds for one step and not for a whole job, because every environment that a worker begins is
    progress.
    """

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._seen: dict[int, tuple[Progress | None, float, int]] = {}  # progress, since when, number of checks

    def check(self, sender: int, progress: Progress | None, now: float) -> str:
        """Why a worker with work counts as hung, or "". `progress` is None while it makes its first environments."""
        making = progress is None or progress[-1] == MAKE
        option = "start_timeout_seconds" if making else "step_timeout_seconds"
        before, since, checks = self._seen.get(sender, (None, now, 0))
        if before != progress:
            since, checks = now, 0
        self._seen[sender] = progress, since, checks + 1
        seconds = now - since
        if checks + 1 < MIN_CHECKS or seconds <= getattr(self._config, option):
            return ""
        return f"{'making an environment' if making else 'no answer'} for {seconds:.1f} s (pool.{option})"

    def forget(self, sender: int) -> None:
        """The worker has no work, or has ended."""
        self._seen.pop(sender, None)
