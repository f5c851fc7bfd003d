"""Sleeping instead of listening, where many messages are on their way.

Whoever listens is woken up by every message, which takes several times as long as reading it does. Where a batch of slots comes in
many messages, most of that is saved by sleeping through a part of the time that they will take (`benchmarks/pool_naps.py`).
"""

from __future__ import annotations

import time

SHARE = 0.6
"""Of what is expected, since it may be over sooner."""
SHORTEST_SECONDS = 0.00025
"""A sleep takes some 0.06 ms longer than it should."""
LONGEST_SECONDS = 0.001
"""Deadlines and dead workers are looked at in between."""
LEAST_MESSAGES = 3
"""That a nap has to save."""
SMOOTHING = 0.1
"""Weight of the newest wait in the means."""


class Naps:
    """Knows how fast slots have been coming lately, and sleeps accordingly."""

    def __init__(self) -> None:
        self._slot_seconds = self._message_seconds = 0.0
        """From one to the next while they were waited for."""

    def take(self, missing: int, most_seconds: float) -> bool:
        """Sleep for a part of the time that `missing` slots will take, if that is worth it; whether it was."""
        seconds = min(most_seconds, SHARE * missing * self._slot_seconds, LONGEST_SECONDS)
        if seconds < max(SHORTEST_SECONDS, LEAST_MESSAGES * self._message_seconds):
            return False
        time.sleep(seconds)
        return True

    def note(self, seconds: float, slots: int, messages: int) -> None:
        """A wait is over, in which so many slots came, announced by so many messages."""
        if slots > 0 and messages > 0:
            self._slot_seconds += SMOOTHING * (seconds / slots - self._slot_seconds)
            self._message_seconds += SMOOTHING * (seconds / messages - self._message_seconds)
