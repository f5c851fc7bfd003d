"""The preemption of stragglers: when a rank stops collecting early, so that the others need not wait for it.

`ByCount` is DD-PPO's (Wijmans et al., 2020, section 3 and figure 9): ranks that have finished their rollout count
themselves; a rank that is still collecting ends early once enough are done. Every iteration has a counter of its own:
nothing is ever reset, so nothing can be read while it is.

`ByDeadline` is VER's (Wijmans et al., 2022, section 2.3): before a rollout all ranks compute the same deadline, the one
that lets them collect the most steps per second, learning included.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import torch

from paceline.distributed.config import PreemptionConfig
from paceline.distributed.runtime import Group

if TYPE_CHECKING:
    from paceline.config import Config

OVERSHOOTS = 16
"""Over so many rollouts it is averaged how late a rank notices its deadline."""
SLACK = 1.05
"""Times the best deadline: rates vary, and a rank that stops a few steps short of full loses more than the others wait."""
LEAST_GAIN = 1.1
"""Times the steps per second of waiting for everybody: below that, ranks differ by chance, and nobody is preempted."""


class Preemption(Protocol):
    """One rank's part in it: the methods are called in this order in every iteration, `should_stop` in every loop."""

    def begin(self, collected: int) -> None:
        """A rollout begins, which has so many steps already."""
        ...

    def seconds_left(self) -> float | None:
        """No wait for simulators may be longer; None where it may."""
        ...

    def should_stop(self, collected: int) -> bool:
        """Whether a rank that has collected so many steps is to end its rollout now."""
        ...

    def finished(self, collected: int) -> None:
        """This rank's rollout has ended, early or not."""
        ...

    def learned(self, beside: float | None = None) -> None:
        """All ranks have learned from it; `beside` says that it took so many seconds beside the collection."""
        ...


def make_preemption(config: Config, group: Group, goal: int, own: Literal["count", "deadline"]) -> Preemption:
    """For rollouts of `goal` steps a rank; `own` is the system's own kind. A deterministic run preempts nobody: who is
    faster must not matter."""
    kind = own if config.preemption.kind == "auto" else config.preemption.kind
    if config.deterministic:
        return ByCount(PreemptionConfig(threshold=1.0), group, goal)
    return ByCount(config.preemption, group, goal) if kind == "count" else ByDeadline(group, goal)


class ByCount:
    """Ends early once enough ranks are done."""

    def __init__(self, config: PreemptionConfig, group: Group, goal: int) -> None:
        self._group, self._goal = group, goal
        self._needed = config.threshold * group.size
        self._least = config.minimum * goal
        self._name = group.new_name("rollouts_done")  # of another training by the same ranks, counts are left
        self._iteration = 0

    def begin(self, collected: int) -> None:
        pass

    def seconds_left(self) -> float | None:
        return None

    def should_stop(self, collected: int) -> bool:
        store = self._group.store
        if store is None or collected < self._least or collected >= self._goal or self._needed >= self._group.size:
            return False
        return store.add(self._key(self._iteration), 0) > self._needed

    def finished(self, collected: int) -> None:
        store = self._group.store
        if store is not None:
            store.add(self._key(self._iteration), 1)
            # Everybody is past the iteration before last: its update needed all ranks.
            if self._group.is_first and self._iteration >= 2:
                store.delete_key(self._key(self._iteration - 2))
        self._iteration += 1

    def learned(self, beside: float | None = None) -> None:
        pass

    def _key(self, iteration: int) -> str:
        return f"{self._name}/{iteration}"


class ByDeadline:
    """Ends at the deadline of equation 1, from how fast all ranks collected and learned the last time."""

    def __init__(self, group: Group, goal: int, now: Callable[[], float] = time.monotonic) -> None:
        self._group, self._goal, self._now = group, goal, now
        self._began = self._ended = 0.0
        self._had, self._rate = 0, 0.0
        self._deadline = self._stop_after = float("inf")
        self._late: deque[float] = deque(maxlen=OVERSHOOTS)

    def begin(self, collected: int) -> None:
        self._began, self._had = self._now(), collected
        self._stop_after = self._deadline - (sum(self._late) / len(self._late) if self._late else 0.0)

    def seconds_left(self) -> float | None:
        if self._stop_after == float("inf"):
            return None
        return max(0.0, self._stop_after - (self._now() - self._began))

    def should_stop(self, collected: int) -> bool:
        return self.seconds_left() == 0.0

    def finished(self, collected: int) -> None:
        self._ended = self._now()
        seconds = self._ended - self._began
        self._rate = (collected - self._had) / max(seconds, 1e-9)
        if collected < self._goal and self._stop_after < float("inf"):  # it was the deadline that ended it
            self._late.append(max(0.0, seconds - self._stop_after))

    def learned(self, beside: float | None = None) -> None:
        if self._group.size == 1:
            return
        facts = torch.zeros(self._group.size, 2, dtype=torch.float64, device=self._group.device)
        facts[self._group.rank, 0] = self._rate
        facts[self._group.rank, 1] = self._now() - self._ended if beside is None else beside
        rates, learning = self._group.sum_(facts).cpu().numpy().T
        # Whoever came last to the first all-reduce waited for nobody: its time is that of learning alone.
        self._deadline = SLACK * best_deadline(rates, float(learning.min()), self._goal, beside=beside is not None)


def best_deadline(rates: np.ndarray, learning_seconds: float, goal: int, *, beside: bool = False) -> float:
    """The seconds of collecting that maximise steps / (seconds + learning_seconds): equation 1. Where learning goes on
    beside collecting, an iteration takes the longer of the two instead.

    Rank r collects `rates[r]` steps per second until it has `goal`. A rank's rate is the sum of those of its
    environments, each one over its mean time per step, so nothing more need be known of them. Between two ranks' becoming
    full, steps grow linearly with time and the quotient is monotonic: the best time is one at which a rank is full (or
    at which learning is done). Infinite where that is hardly better than waiting for everybody.
    """
    full_after = goal / np.maximum(rates, 1e-9)
    times = np.append(full_after, learning_seconds) if beside else full_after
    lasting = np.maximum(times, learning_seconds) if beside else times + learning_seconds
    collected = np.minimum(rates[None, :] * times[:, None], goal).sum(1)
    speeds = collected / np.maximum(lasting, 1e-9)
    if speeds.max() < LEAST_GAIN * speeds[np.argmax(times)]:
        return float("inf")
    return float(times[np.argmax(speeds)])
