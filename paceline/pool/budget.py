"""How many simulators a pool may replace before the run ends."""

from __future__ import annotations

import logging
import time
from collections import deque

from paceline.errors import SimulatorError, SimulatorFailure
from paceline.pool.config import PoolConfig

log = logging.getLogger(__name__)

HOUR_SECONDS = 3600.0


class LastHour:
    """Counts what happened within the last hour."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def add(self) -> None:
        self._times.append(time.monotonic())

    def __len__(self) -> int:
        while self._times and time.monotonic() - self._times[0] >= HOUR_SECONDS:
            self._times.popleft()
        return len(self._times)


class RestartBudget:
    """Counts replacements. Limits their total (`max_restarts`) or else their rate (`max_restarts_per_hour`)."""

    def __init__(self, config: PoolConfig) -> None:
        self.restarts = 0
        self._total, self._per_hour = config.max_restarts, config.max_restarts_per_hour
        self._recent = LastHour()

    def spend(self, failure: SimulatorFailure) -> None:
        """Count and log one replacement. Raises when the budget is spent."""
        if self._total is not None:
            spent, allowed, period, option = self.restarts, self._total, "", "pool.max_restarts"
        else:
            spent, allowed, period = len(self._recent), self._per_hour, " an hour"
            option = "pool.max_restarts_per_hour"
        if spent >= allowed:
            raise SimulatorError(failure, f"the budget of {allowed} restarts{period} is spent ({option})")
        self.restarts += 1
        self._recent.add()
        log.warning("replacing a simulator (%d of %d%s): %s", spent + 1, allowed, period, failure)
