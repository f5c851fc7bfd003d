"""What every worker does right now, in the head of the shared memory: readable when a worker answers no more."""

from __future__ import annotations

from typing import Any

import numpy as np

IDLE = -1
"""In place of an environment's index: the worker waits for a command."""

STEP, RESET, MAKE, SAVE, RESTORE = range(5)
PHASES = ("step", "reset", "make", "save", "restore")
"""What a worker may be doing with its current environment, by the number in `Heartbeat.phase`."""


class Heartbeat:
    """One cell per worker: its current environment, since when, and the phase."""

    def __init__(self, buffer: Any, num_workers: int) -> None:
        self.patience = np.ndarray(1, np.float64, buffer=buffer)
        """Seconds from one announcement of finished steps to the next."""
        self.since = np.ndarray(num_workers, np.float64, buffer=buffer, offset=8)
        self.env = np.ndarray(num_workers, np.int32, buffer=buffer, offset=8 + 8 * num_workers)
        self.phase = np.ndarray(num_workers, np.int32, buffer=buffer, offset=8 + 12 * num_workers)

    def clear(self, worker: int | slice) -> None:
        """As of a worker that has not begun anything."""
        self.env[worker], self.phase[worker] = IDLE, STEP

    def progress(self, worker: int) -> tuple[float, int, int]:
        """Changes whenever the worker begins or ends something."""
        return float(self.since[worker]), int(self.env[worker]), int(self.phase[worker])

    def cells(self) -> tuple[Any, Any]:
        """`since` and `env` for writing single cells cheaply."""
        return memoryview(self.since), memoryview(self.env)  # type: ignore[arg-type]

    @staticmethod
    def nbytes(num_workers: int) -> int:
        return -(-(8 + 16 * num_workers) // 64) * 64
