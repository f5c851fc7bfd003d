"""Adaptive batching: how many slots to wait for before the next decisions.

A decision for one slot costs almost as much as one for many slots, so a batch is worth some waiting. A slot that waits
may be a simulator that stands still. Waiting saves at most one decision, so the wait for a minimum number of slots is
as long as a decision takes. After that the slots that are ready are served.

| where | minimum | wait |
|---|---|---|
| every environment has a worker of its own | a quarter of the slots | one decision |
| environments share workers, which step others meanwhile | an eighth | one decision |
| environments share workers on few cores, where decisions take time from simulators | half | four decisions |
| the same, and a learner uses these cores too | all | four decisions |
| environments step together (EnvPool) | one | |
"""

from __future__ import annotations

import time

import numpy as np

from paceline.collect.config import BatchingConfig
from paceline.pool.config import available_core_ids
from paceline.pool.protocol import Pool, StepBatch

SMOOTHING = 0.05
"""Weight of the latest decision in the running mean of their duration."""
FEW_CORES = 4


class AdaptiveBatching:
    """Receives batches from a pool. It measures how long decisions take."""

    def __init__(self, pool: Pool, config: BatchingConfig, *, learner_shares_cores: bool = False) -> None:
        self._pool = pool
        slots, shared = pool.spec.num_slots, pool.spec.envs_per_worker > 1
        crowded = shared and len(available_core_ids()) <= FEW_CORES
        share = (1.0 if learner_shares_cores else 0.5) if crowded else 0.125 if shared else 0.25
        own_minimum = 1 / slots if pool.spec.in_step else share
        minimum = min(config.maximum, own_minimum) if config.minimum is None else config.minimum
        self._patience = (4.0 if crowded else 1.0) if config.patience is None else config.patience
        self._minimum = max(1, round(minimum * slots))
        self._maximum = max(self._minimum, round(config.maximum * slots))
        self._decision_seconds = 0.0
        self._decision_began: float | None = None

    def receive(
        self,
        in_flight: int,
        most: int | None = None,
        seconds_left: float | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        """At least one of the slots in flight, at most `most`. The batch is empty only if none was ready in
        `seconds_left`, or if the pool was woken up.

        `first` [slots] has a priority per slot. The lowest numbers are served first.
        """
        if self._decision_began is not None:
            seconds = time.perf_counter() - self._decision_began
            self._decision_seconds += SMOOTHING * (seconds - self._decision_seconds)
        maximum = self._maximum if most is None else min(self._maximum, most)
        minimum = min(self._minimum, maximum, in_flight)
        until = None if seconds_left is None else time.perf_counter() + seconds_left
        batch = None
        if minimum > 1:
            patient_until = time.perf_counter() + self._patience * self._decision_seconds
            batch = self._recv(minimum, maximum, patient_until if until is None else min(patient_until, until), first)
        if batch is None or len(batch) == 0:
            batch = self._recv(1, maximum, until, first)
        self._decision_began = time.perf_counter()
        return batch

    def _recv(self, minimum: int, maximum: int, until: float | None, first: np.ndarray | None) -> StepBatch:
        left = None if until is None else max(0.0, until - time.perf_counter())
        return self._pool.recv(min_slots=minimum, max_slots=maximum, timeout=left, first=first)

    def begin_decision(self) -> None:
        """A decision begins now. A wait for the learner before it is not part of it."""
        self._decision_began = time.perf_counter()

    def pause(self) -> None:
        """Stop timing the decision."""
        self._decision_began = None
