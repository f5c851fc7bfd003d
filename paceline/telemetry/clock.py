"""Time shares: every second of a training loop belongs to one activity."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

ADVICE = {
    "simulation": "more cores, more --pool.workers, more --pool.num-envs",
    "inference": "a smaller policy, a GPU (--device cuda), or more --pool.num-envs to share each forward pass",
    "transfer": "fewer or smaller observations",
    "learning": "fewer --ppo.epochs, larger mini-batches, a GPU (--device cuda)",
    "communication": "a faster network, longer rollouts, or a lower --preemption.threshold (ddppo)",
    "other": "the program itself: profile it with py-spy",
}
"""What to try if an activity takes the most time."""
ACTIVITIES = tuple(ADVICE)


def bottleneck(shares: Mapping[str, float]) -> tuple[str, str]:
    """A phrase that names the activity with the largest share of the time, and what to try."""
    activity = max(shares, key=lambda name: shares[name])
    return f"{activity} takes {shares[activity]:.0%} of the time", ADVICE[activity]


class Clock:
    """Adds up the seconds of each activity. Time outside all activities is "other".

    Activities may be nested: the seconds of an inner activity do not count for the outer one. Times are host times: the
    time of a CUDA kernel appears where the host waits for it. Only the thread that made the clock is timed: other
    threads take none of its time.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._spent = dict.fromkeys(ACTIVITIES, 0.0)
        self._since = time.perf_counter()
        self._inner = 0.0
        """Seconds of the activities inside the current one."""

    def time(self, activity: str) -> TimedActivity:
        """A context whose time counts as `activity`."""
        return TimedActivity(self, activity)

    def take_shares(self) -> dict[str, float]:
        """The share of each activity since the last call; the shares add up to 1.

        Any thread may call it. An activity that is not finished counts for the next call, with all of its time.
        """
        now = time.perf_counter()
        spent, self._spent = self._spent, dict.fromkeys(ACTIVITIES, 0.0)
        total = max(now - self._since, sum(spent.values()), 1e-9)
        shares = {activity: seconds / total for activity, seconds in spent.items()}
        shares["other"] = max(0.0, 1.0 - sum(shares.values()))
        self._since = now
        return shares


class TimedActivity:
    """The context of `Clock.time`. It is a class, because a generator is slower and every decision enters several."""

    __slots__ = ("_activity", "_clock", "_outer", "_start")

    def __init__(self, clock: Clock, activity: str) -> None:
        self._clock, self._activity = clock, activity

    def __enter__(self) -> None:
        clock = self._clock
        self._start: float | None = None
        if threading.get_ident() == clock._thread:
            self._outer, clock._inner = clock._inner, 0.0
            self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        if self._start is not None:
            clock, seconds = self._clock, time.perf_counter() - self._start
            clock._spent[self._activity] += seconds - clock._inner
            clock._inner = self._outer + seconds
