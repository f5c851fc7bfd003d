"""`Limiter`: keeps the ratio of draws to insertions of a replay near a fixed value.

Without it, the speed of the machine would decide how often a concurrent learner uses each transition.
"""

from __future__ import annotations

import threading
from typing import Any

from paceline.experience.config import LimiterConfig


class Limiter:
    """Counts draws and insertions. Each thread asks before it continues. At least one of the two always may."""

    def __init__(self, config: LimiterConfig, batch: int, inserts: int) -> None:
        """One step of a thread is `batch` draws or up to `inserts` insertions. The tolerance always allows one step."""
        self._ratio, self._minimum = config.samples_per_insert, config.minimum
        tolerance = config.tolerance * config.minimum * self._ratio
        self._tolerance = max(tolerance, batch, self._ratio * inserts)
        self._inserted = self._drawn = 0
        self._condition = threading.Condition()

    @property
    def ahead(self) -> float:
        """Draws that are still due for the insertions so far. Negative if the learner drew too often."""
        return self._ratio * (self._inserted - self._minimum) - self._drawn

    @property
    def has_begun(self) -> bool:
        """Whether the replay has enough transitions for the first draw."""
        return self._inserted >= self._minimum

    def may_insert(self) -> bool:
        return not self.has_begun or self.ahead < self._tolerance

    def may_draw(self) -> bool:
        return self.has_begun and self.ahead > -self._tolerance

    def insert(self, count: int) -> None:
        with self._condition:
            self._inserted += count
            self._condition.notify_all()

    def draw(self, count: int) -> None:
        with self._condition:
            self._drawn += count
            self._condition.notify_all()

    def wait(self, *, to_draw: bool, seconds: float) -> bool:
        """Wait for at most `seconds` until drawing, or inserting, is allowed. Returns whether it is."""
        with self._condition:
            return self._condition.wait_for(self.may_draw if to_draw else self.may_insert, seconds)

    def state_dict(self) -> dict[str, Any]:
        return {"inserted": self._inserted, "drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the counts. If the ratio has changed since, draws count as on time, so no thread waits for long."""
        with self._condition:
            self._inserted, self._drawn = state["inserted"], state["drawn"]
            if abs(self.ahead) > 2 * self._tolerance:
                self._drawn = max(0, round(self._ratio * (self._inserted - self._minimum)))
            self._condition.notify_all()
