"""Preemption: a slow rank ends its rollout early, so that the other ranks do not wait for it.

`ByCount` is DD-PPO's rule (Wijmans et al., 2020, section 3 and figure 9). Ranks that have finished their rollout
increment a counter. A rank that still collects ends early once enough ranks are done. Every iteration has its own
counter: no counter is ever reset, so no rank can read one during a reset.

`ByDeadline` is VER's rule (Wijmans et al., 2022, section 2.3). Before a rollout all ranks compute the same deadline:
the one that gives the most steps per second, learning included.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Literal, Protocol

import numpy as np
import torch

from paceline.distributed.config import PreemptionConfig
from paceline.distributed.runtime import Group

OVERSHOOTS = 16
"""The delay with which a rank notices its deadline is averaged over this many rollouts."""
SLACK = 1.05
"""Factor on the best deadline. Speeds vary, and a rank that just misses its goal loses more than the others wait."""
LEAST_GAIN = 1.1
"""Least gain in steps per second for which ranks are preempted. Below it, ranks differ by chance."""


class Preemption(Protocol):
    """One rank's part in preemption. Every iteration calls `begin`, then `finished`, then `learned`."""

    def begin(self, collected: int) -> None:
        """A rollout begins. It already has `collected` steps."""

    def seconds_left(self) -> float | None:
        """The longest that a wait for simulators may take; None if there is no limit."""

    def should_stop(self, collected: int) -> bool:
        """Whether this rank, with `collected` steps, must end its rollout now."""

    def finished(self, collected: int) -> None:
        """This rank's rollout has ended, early or not."""

    def learned(self, concurrent_seconds: float | None = None) -> None:
        """All ranks have learned from the rollout: in `concurrent_seconds`, if that was concurrent with collection."""


def make_preemption(
    config: PreemptionConfig, group: Group, goal: int, own: Literal["count", "deadline"], *, deterministic: bool
) -> Preemption:
    """Preemption for rollouts of `goal` steps per rank. `own` is the kind that "auto" stands for in this system.

    A deterministic run preempts no rank, because its result must not depend on which rank is faster.
    """
    if deterministic:
        return ByCount(PreemptionConfig(threshold=1.0), group, goal)
    kind = own if config.kind == "auto" else config.kind
    return ByCount(config, group, goal) if kind == "count" else ByDeadline(group, goal)


class ByCount:
    """Ends a rollout early once enough ranks are done."""

    def __init__(self, config: PreemptionConfig, group: Group, goal: int) -> None:
        self._group, self._goal = group, goal
        self._needed = config.threshold * group.size
        self._least = config.minimum * goal
        self._name = group.new_name("rollouts_done")  # the store still has the counters of earlier trainings
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
            # No rank needs the counter before last any more: the update of that iteration needed all ranks.
            if self._group.is_first and self._iteration >= 2:
                store.delete_key(self._key(self._iteration - 2))
        self._iteration += 1

    def learned(self, concurrent_seconds: float | None = None) -> None:
        pass

    def _key(self, iteration: int) -> str:
        return f"{self._name}/{iteration}"


class ByDeadline:
    """Ends a rollout at the deadline of equation 1, computed from how fast all ranks last collected and learned."""

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
        if collected < self._goal and self._stop_after < float("inf"):  # the deadline ended the rollout
            self._late.append(max(0.0, seconds - self._stop_after))

    def learned(self, concurrent_seconds: float | None = None) -> None:
        if self._group.size == 1:
            return
        facts = torch.zeros(self._group.size, 2, dtype=torch.float64, device=self._group.device)
        facts[self._group.rank, 0] = self._rate
        facts[self._group.rank, 1] = self._now() - self._ended if concurrent_seconds is None else concurrent_seconds
        rates, learning = self._group.sum_(facts).cpu().numpy().T
        # The rank that reached the first all-reduce last did not wait for another rank: its time is learning alone.
        concurrent = concurrent_seconds is not None
        self._deadline = SLACK * best_deadline(rates, float(learning.min()), self._goal, concurrent=concurrent)


def best_deadline(rates: np.ndarray, learning_seconds: float, goal: int, *, concurrent: bool = False) -> float:
    """The collection time that maximises steps / (collection time + learning_seconds): equation 1.

    With `concurrent`, the ranks learn while they collect, and an iteration takes the longer of the two.

    Rank r collects `rates[r]` steps per second until it has `goal` steps. A rank's rate is the sum of the rates of its
    environments, so the single rates are not needed. Between the times at which two ranks reach `goal`, the total grows
    linearly and the quotient is monotonic. So the best time is one at which a rank reaches `goal` (or learning ends).
    The result is infinite if that is hardly better than waiting for all ranks.
    """
    full_after = goal / np.maximum(rates, 1e-9)
    times = np.append(full_after, learning_seconds) if concurrent else full_after
    lasting = np.maximum(times, learning_seconds) if concurrent else times + learning_seconds
    collected = np.minimum(rates[None, :] * times[:, None], goal).sum(1)
    speeds = collected / np.maximum(lasting, 1e-9)
    if speeds.max() < LEAST_GAIN * speeds[np.argmax(times)]:
        return float("inf")
    return float(times[np.argmax(speeds)])
