"""Adaptive batching: how many slots to wait for before the next decisions.

A decision for one slot costs almost what a decision for many does, so a batch is worth some waiting; but a slot that
waits is a simulator that stands still. The rule is VER's: up to a share of the mean step time is waited for a minimum
of slots, after that whoever is ready is served.
"""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError
from paceline.pool.protocol import Pool, StepBatch

SMOOTHING = 0.05
"""Weight of the newest batch in the running mean of step times."""


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How many slots are decided for together by systems that do not wait for all."""

    minimum: float = 0.25
    """Wait for this share of the slots ..."""
    maximum: float = 1.0
    """... take at most this share at once ..."""
    patience: float = 0.5
    """... and wait no longer than this share of the mean step time."""

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum"):
            if not 0 < getattr(self, name) <= 1:
                raise UsageError(f"batching.{name} must be above 0 and at most 1, got {getattr(self, name)}")
        if self.minimum > self.maximum:
            raise UsageError(f"batching.minimum {self.minimum} must not be above batching.maximum {self.maximum}")
        if self.patience < 0:
            raise UsageError(f"batching.patience must be at least 0, got {self.patience}")


class AdaptiveBatching:
    """Receives batches from a pool by a `BatchingConfig`; learns the mean step time as it goes."""

    def __init__(self, pool: Pool, config: BatchingConfig) -> None:
        self._pool, self._patience = pool, config.patience
        slots = pool.spec.num_slots
        self._minimum = max(1, round(config.minimum * slots))
        self._maximum = max(self._minimum, round(config.maximum * slots))
        self._step_seconds: float | None = None

    def receive(self) -> StepBatch:
        """At least one slot, at most the maximum."""
        wait = self._patience * (self._step_seconds or 0.0)
        batch = self._pool.recv(min_slots=self._minimum, max_slots=self._maximum, timeout=wait)
        if len(batch) == 0:
            batch = self._pool.recv(min_slots=1, max_slots=self._maximum)
        self._learn(float(batch.step_seconds.mean()))
        return batch

    def _learn(self, seconds: float) -> None:
        if self._step_seconds is None:
            self._step_seconds = seconds
        else:
            self._step_seconds += SMOOTHING * (seconds - self._step_seconds)
