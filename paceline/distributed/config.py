"""Settings of the group of ranks. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """How ranks watch each other."""

    heartbeat_seconds: float = 60.0
    """The run ends with an error when a rank has been stopped, hung or cut off for this long."""

    def __post_init__(self) -> None:
        if not self.heartbeat_seconds > 0:
            raise UsageError(f"group.heartbeat_seconds must be above 0, got {self.heartbeat_seconds}")


@dataclass(frozen=True, kw_only=True)
class PreemptionConfig:
    """When stragglers end their rollout early."""

    kind: Literal["auto", "count", "deadline"] = "auto"
    """count: once enough ranks are done (DD-PPO); deadline: when more steps are no longer worth the others' time (VER).
    auto takes the system's own."""
    threshold: float = 0.6
    """count: preempt once more than this share of the ranks is done; 1 never preempts."""
    minimum: float = 0.25
    """count: no rollout ends before this share of its steps, so that every environment contributes."""

    def __post_init__(self) -> None:
        if self.kind not in ("auto", "count", "deadline"):
            raise UsageError(f"preemption.kind {self.kind!r} does not exist; allowed: auto, count, deadline")
        for name in ("threshold", "minimum"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"preemption.{name} must be between 0 and 1, got {getattr(self, name)}")
