"""Settings of the group of ranks."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """How ranks watch each other."""

    heartbeat_seconds: float = 60.0
    """The run ends with an error when a rank has been stopped, hung or cut off for this long."""

    def __post_init__(self) -> None:
        if not self.heartbeat_seconds > 0:
            raise UsageError(f"group.heartbeat_seconds must be above 0, got {self.heartbeat_seconds}")
