"""Adaptive batching: how many slots to wait for before the next decisions.

A decision for one slot costs almost what a decision for many does, so a batch is worth some waiting; but a slot that
waits may be a simulator that stands still. Waiting for others may save at most a decision of their own, so that is how
long is waited for a minimum of slots; after that whoever is ready is served. Where several environments share a worker it
has others to step meanwhile, and waiting costs little. Where, in addition, cores are few, every decision takes time from
simulators: then the minimum is larger and the wait longer, and where learning goes on beside on the same cores, which leaves none of
them idle, all slots are waited for. Where simulators step together, whoever is ready is all there
is to wait for, and a pool need not be ready to be interrupted. (VER's own implementation waits for half the mean step of a
simulator.)
"""

from __future__ import annotations

import time
from typing import Protocol

import numpy as np

from paceline.collect.config import BatchingConfig
from paceline.pool.config import available_core_ids
from paceline.pool.protocol import Pool, StepBatch

SMOOTHING = 0.05
"""Weight of the newest decision in their running mean time."""


FEW_CORES = 4
"""On so many a decision takes a good part of what simulators could use."""


class Elsewhere(Protocol):
    """Decisions that are made by other threads, who wake the pool up after each."""

    @property
    def have_news(self) -> bool:
        """Whether one is made."""
        ...

    def take_seconds(self) -> list[float]:
        """What those took that were taken since the last call."""
        ...


class AdaptiveBatching:
    """Receives batches from a pool by a `BatchingConfig`; learns what a decision takes as it goes."""

    def __init__(
        self, pool: Pool, config: BatchingConfig, elsewhere: Elsewhere | None = None, *, learning: bool = False
    ) -> None:
        """With `learning` these cores learn while simulators are waited for."""
        self._pool, self._elsewhere = pool, elsewhere
        slots, shared = pool.spec.num_slots, pool.spec.envs_per_worker > 1
        # A pool that waits for those who step together does not hear of what was decided elsewhere.
        in_step = pool.spec.in_step and elsewhere is None
        crowded = shared and len(available_core_ids()) <= FEW_CORES
        few = (1.0 if learning and elsewhere is None else 0.5) if crowded else 0.125 if shared else 0.25
        own_minimum = 1 / slots if in_step else few
        minimum = min(config.maximum, own_minimum) if config.minimum is None else config.minimum
        self._patience = (4.0 if crowded else 1.0) if config.patience is None else config.patience
        self._minimum = max(1, round(minimum * slots))
        self._maximum = max(self._minimum, round(config.maximum * slots))
        self._decision_seconds = 0.0
        self._handed_out: float | None = None
        self._patient_until: float | None = None
        """Since the last batch that was not empty: who is ready is not to wait longer for being interrupted."""

    def receive(
        self,
        in_flight: int,
        most: int | None = None,
        seconds_left: float | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        """At least one of the slots in flight, at most `most`; none only where none was ready in `seconds_left`, or before something
        was decided elsewhere.

        Where not all that are ready can be taken, those with lower numbers in `first` [slots] do.
        """
        self._learn()
        maximum = self._maximum if most is None else min(self._maximum, most)
        minimum = min(self._minimum, maximum, in_flight)
        until = None if seconds_left is None else time.perf_counter() + seconds_left
        batch = self._recv(minimum, maximum, self._patience_ends(until), first) if minimum > 1 else None
        if batch is None or (len(batch) == 0 and not self._has_news()):
            batch = self._recv(1, maximum, until, first)
        if len(batch):
            self._patient_until = None
        self._handed_out = time.perf_counter()
        return batch

    def _patience_ends(self, until: float | None) -> float:
        """When whoever is ready is served."""
        if self._patient_until is None:
            self._patient_until = time.perf_counter() + self._patience * self._decision_seconds
            if until is not None:
                self._patient_until = min(self._patient_until, until)
        return self._patient_until

    def _recv(self, minimum: int, maximum: int, until: float | None, first: np.ndarray | None) -> StepBatch:
        """What the pool has for us by then. It may have been woken up for something that was taken since: then this goes on."""
        while True:
            left = None if until is None else max(0.0, until - time.perf_counter())
            batch = self._pool.recv(min_slots=minimum, max_slots=maximum, timeout=left, first=first)
            if len(batch) or self._elsewhere is None or left == 0.0 or self._has_news():
                return batch

    def _has_news(self) -> bool:
        return self._elsewhere is not None and self._elsewhere.have_news

    def begin_decision(self) -> None:
        """What came since slots were handed out, a wait for the learner, say, is no part of the decision that comes now."""
        self._handed_out = time.perf_counter()

    def pause(self) -> None:
        """What comes now is no decision."""
        self._handed_out = self._patient_until = None

    def _learn(self) -> None:
        if self._elsewhere is not None:
            taken = self._elsewhere.take_seconds()
        else:
            taken = [] if self._handed_out is None else [time.perf_counter() - self._handed_out]
        for seconds in taken:
            self._decision_seconds += SMOOTHING * (seconds - self._decision_seconds)
