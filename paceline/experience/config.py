"""Settings of the replay. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """What is remembered, and how it is drawn."""

    capacity: int = 1_000_000
    """Transitions that are kept; the oldest is overwritten."""
    prioritized: bool = True
    """Draw in proportion to priorities; otherwise uniformly."""
    exponent: float = 0.6
    """Alpha of prioritized replay: priorities count with this power. 1 is proportional, 0 uniform."""
    correction: float = 1.0
    """Beta of prioritized replay: importance weights count with this power; 1 is D4PG's exact 1 / (C p)."""

    def __post_init__(self) -> None:
        if self.capacity < 2:
            raise UsageError(f"replay.capacity must be at least 2, got {self.capacity}")
        for name in ("exponent", "correction"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"replay.{name} must be between 0 and 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class LimiterConfig:
    """How often transitions are learned from."""

    samples_per_insert: float = 32.0
    """Transitions that are drawn for every one that is inserted."""
    minimum: int = 1000
    """Insertions before anything is drawn."""
    tolerance: float = 0.1
    """How far the two may be apart from the ratio, as a share of the draws that belong to `minimum` insertions."""

    def __post_init__(self) -> None:
        if not self.samples_per_insert > 0:
            raise UsageError(f"limiter.samples_per_insert must be above 0, got {self.samples_per_insert}")
        if self.minimum < 1:
            raise UsageError(f"limiter.minimum must be at least 1, got {self.minimum}")
        if not self.tolerance > 0:
            raise UsageError(f"limiter.tolerance must be above 0, got {self.tolerance}")
