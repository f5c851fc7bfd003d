"""Where the time goes: every second of a training loop belongs to one activity."""

from __future__ import annotations

import threading
import time
from types import TracebackType

ACTIVITIES = ("simulation", "inference", "transfer", "learning", "communication", "other")


class Clock:
    """Adds up the seconds spent in each activity; what is in none is "other".

    Within an activity another may be timed: its seconds are its own, and not the outer one's as well. Times are the
    host's: on CUDA a kernel's time shows up where the host waits for it. They are of the thread that made the clock;
    what others do beside it takes none of its time.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._spent = dict.fromkeys(ACTIVITIES, 0.0)
        self._since = time.perf_counter()
        self._inner = 0.0
        """Seconds of activities within the one that is being timed."""

    def time(self, activity: str) -> Stretch:
        """A context: what happens in it is `activity`."""
        return Stretch(self, activity)

    def begin(self) -> tuple[float, float] | None:
        """What `end` needs; None in a thread that is not timed."""
        if threading.get_ident() != self._thread:
            return None
        outer, self._inner = self._inner, 0.0
        return outer, time.perf_counter()

    def end(self, activity: str, begun: tuple[float, float] | None) -> None:
        if begun is None:
            return
        outer, start = begun
        seconds = time.perf_counter() - start
        self._spent[activity] += seconds - self._inner
        self._inner = outer + seconds

    def take_shares(self) -> dict[str, float]:
        """The share of each activity since the last call; they add up to 1. Any thread may ask: an activity that goes on
        meanwhile counts as a whole to the next call."""
        now = time.perf_counter()
        spent, self._spent = self._spent, dict.fromkeys(ACTIVITIES, 0.0)
        total = max(now - self._since, sum(spent.values()), 1e-9)
        shares = {activity: seconds / total for activity, seconds in spent.items()}
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        self._since = now
        return shares


class Stretch:
    """One stretch of an activity. (A class and not a generator: it is entered several times per decision.)"""

    __slots__ = ("_activity", "_begun", "_clock")

    def __init__(self, clock: Clock, activity: str) -> None:
        self._clock, self._activity = clock, activity

    def __enter__(self) -> None:
        self._begun = self._clock.begin()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clock.end(self._activity, self._begun)
