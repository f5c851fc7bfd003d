"""Detects hung workers from what the pool sees of them.

The pool knows which workers have something to do, and looks at them now and then. A worker that looks the same for too
long while it has something to do is hung: stuck in a simulator, or stopped before it could begin. The limit holds for
one step, not for a whole job: a worker begins its environments one after the other, and each begin is progress.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.pool.config import PoolConfig
from paceline.pool.heartbeat import MAKE

Progress = tuple[float, int, int]
"""`Heartbeat.progress`."""

LEAST_LOOKS = 4
"""A worker counts as hung only after this many checks without progress. The pool itself may have been busy or suspended, and needs fresh
checks first."""


@dataclass(slots=True)
class _Sight:
    progress: Progress | None
    since: float
    looks: int


class Stalls:
    """How long each worker has looked the same while it had something to do."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._seen: dict[int, _Sight] = {}

    def hung(self, sender: int, progress: Progress | None, now: float) -> str:
        """What is wrong with a worker that has something to do, if it is hung; empty if not. `progress` is None while a worker
        makes its first environments."""
        makes = progress is None or progress[-1] == MAKE
        option = "start_timeout_seconds" if makes else "step_timeout_seconds"
        seconds = self._look(sender, progress, now)
        if seconds <= getattr(self._config, option):
            return ""
        return f"{'making an environment' if makes else 'no answer'} for {seconds:.1f} s (pool.{option})"

    def forget(self, sender: int) -> None:
        """The worker has nothing to do, or is gone."""
        self._seen.pop(sender, None)

    def _look(self, sender: int, progress: Progress | None, now: float) -> float:
        """For how long the worker has been seen like this; 0 while there were too few looks to tell."""
        sight = self._seen.get(sender)
        if sight is None or sight.progress != progress:
            self._seen[sender] = _Sight(progress, now, 1)
            return 0.0
        sight.looks += 1
        return now - sight.since if sight.looks >= LEAST_LOOKS else 0.0
