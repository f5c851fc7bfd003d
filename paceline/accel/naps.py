"""Sleeping instead of listening, while a batch arrives in many messages.

A listener is woken up by every message, which takes several times as long as reading it. Sleeping through a part of the
expected time saves most wake-ups.
"""

from __future__ import annotations

import time

SHARE = 0.6
"""Part of the expected time to sleep: the slots may come sooner."""
SHORTEST_SECONDS = 0.00025
"""A sleep takes about 0.06 ms longer than asked for."""
LONGEST_SECONDS = 0.001
"""Deadlines and dead workers are checked between two naps."""
LEAST_MESSAGES = 3
"""Messages that a nap has to save."""
SMOOTHING = 0.1
"""Weight of the newest wait in the means."""


class Naps:
    """Measures how fast slots arrive, and sleeps accordingly."""

    def __init__(self) -> None:
        self._slot_seconds = self._message_seconds = 0.0
        """Mean time between two slots, and between two messages."""

    def take(self, missing: int, most_seconds: float) -> bool:
        """Sleep for a part of the time that `missing` slots will take, if that pays. Returns whether it slept."""
        seconds = min(most_seconds, SHARE * missing * self._slot_seconds, LONGEST_SECONDS)
        if seconds < max(SHORTEST_SECONDS, LEAST_MESSAGES * self._message_seconds):
            return False
        time.sleep(seconds)
        return True

    def note(self, seconds: float, slots: int, messages: int) -> None:
        """A wait of `seconds` brought this many slots in this many messages."""
        if slots > 0 and messages > 0:
            self._slot_seconds += SMOOTHING * (seconds / slots - self._slot_seconds)
            self._message_seconds += SMOOTHING * (seconds / messages - self._message_seconds)
