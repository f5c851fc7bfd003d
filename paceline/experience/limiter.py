"""How much is learned from how much: draws per insertion, held at a ratio.

Where collecting and learning go on beside each other, the faster one would otherwise decide how often a transition is learned
from, and results would depend on the machine.
"""

from __future__ import annotations

import threading
from typing import Any

from paceline.experience.config import LimiterConfig


class Limiter:
    """Counts of two threads, each of which asks before it goes on. Whatever the counts are, one of the two may."""

    def __init__(self, config: LimiterConfig, batch: int, inserts: int) -> None:
        """`batch` draws and up to `inserts` insertions come at once; the tolerance is at least enough for both."""
        self._ratio, self._minimum = config.samples_per_insert, config.minimum
        slack = config.tolerance * config.minimum * self._ratio
        self._slack = max(slack, batch, self._ratio * inserts)
        self._inserted = self._drawn = 0
        self._changed = threading.Condition()

    @property
    def ahead(self) -> float:
        """Draws that the insertions are ahead of the ratio; below 0 they are behind."""
        return self._ratio * (self._inserted - self._minimum) - self._drawn

    @property
    def has_begun(self) -> bool:
        """Whether there is enough to draw from."""
        return self._inserted >= self._minimum

    def may_insert(self) -> bool:
        return self._inserted < self._minimum or self.ahead < self._slack

    def may_draw(self) -> bool:
        return self._inserted >= self._minimum and self.ahead > -self._slack

    def insert(self, count: int) -> None:
        with self._changed:
            self._inserted += count
            self._changed.notify_all()

    def draw(self, count: int) -> None:
        with self._changed:
            self._drawn += count
            self._changed.notify_all()

    def wait(self, *, to_draw: bool, seconds: float) -> bool:
        """Wait until one may draw, or else insert, for at most `seconds`; whether one may."""
        with self._changed:
            return self._changed.wait_for(self.may_draw if to_draw else self.may_insert, seconds)

    def state_dict(self) -> dict[str, Any]:
        return {"inserted": self._inserted, "drawn": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved counts. Under another ratio they would hold one side up for long: then it counts anew."""
        with self._changed:
            self._inserted, self._drawn = state["inserted"], state["drawn"]
            if abs(self.ahead) > 2 * self._slack:
                self._drawn = max(0, round(self._ratio * (self._inserted - self._minimum)))
            self._changed.notify_all()
