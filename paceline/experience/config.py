"""Settings of the replay. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.checks import require_above_0, require_at_least, require_share


@dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """The replay of d4pg."""

    capacity: int = 1_000_000
    """Transitions that the replay of one rank holds. A full replay overwrites its oldest."""
    stack: int = 0
    """Frames in the channels of image observations. Each frame is then stored once, and transitions name their frames.
    1: images that are no stack. 0: every transition stores its two observations."""
    prioritized: bool = True
    """Draw transitions in proportion to their priorities. Otherwise draw uniformly."""
    exponent: float = 0.6
    """Alpha of prioritized replay: the power of the priorities. 1: proportional to them, 0: uniform."""
    correction: float = 1.0
    """Beta of prioritized replay: the power of the importance weights. 1: D4PG's exact weights 1 / (C p)."""

    def __post_init__(self) -> None:
        require_at_least(self, "replay", 2, "capacity")
        require_at_least(self, "replay", 0, "stack")
        require_share(self, "replay", "exponent", "correction")


@dataclass(frozen=True, kw_only=True)
class LimiterConfig:
    """The ratio of learning to collecting."""

    samples_per_insert: float = 32.0
    """Transitions drawn from the replay for every transition inserted."""
    minimum: int = 1000
    """Transitions inserted before the first is drawn."""
    tolerance: float = 0.1
    """How far draws may be from that ratio, as a share of the draws that belong to `minimum` insertions."""

    def __post_init__(self) -> None:
        require_above_0(self, "limiter", "samples_per_insert", "tolerance")
        require_at_least(self, "limiter", 1, "minimum")
