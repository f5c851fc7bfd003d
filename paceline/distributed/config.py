"""Settings of the group of ranks. Free of PyTorch: the command line reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from paceline.checks import require_above_0, require_choices, require_share
from paceline.errors import UsageError

DEVICES = "cpu, cuda, cuda:N, auto"


def require_device(name: str) -> None:
    """Refuse what is no device of a run."""
    if re.fullmatch(r"cpu|auto|cuda(:\d+)?", name) is None:
        raise UsageError(f"device {name!r} does not exist; allowed: {DEVICES}")


PreemptionKind = Literal["count", "deadline"]


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """How ranks watch each other."""

    heartbeat_seconds: float = 60.0
    """The run ends with an error when nothing was heard of a rank for this many seconds."""

    def __post_init__(self) -> None:
        require_above_0(self, "group", "heartbeat_seconds")


@dataclass(frozen=True, kw_only=True)
class PreemptionConfig:
    """When slow ranks end their rollout early."""

    kind: Literal["auto", "count", "deadline"] = "auto"
    """count: once enough ranks are done (DD-PPO). deadline: at the time that maximises the steps per second of all
    ranks (VER). auto: deadline under ver, count under the other systems."""
    threshold: float = 0.6
    """count: end once more than this share of the ranks is done. 1: never."""
    minimum: float = 0.25
    """count: no rollout ends before this share of its steps, so that every environment contributes."""

    def __post_init__(self) -> None:
        require_choices(self, "preemption")
        require_share(self, "preemption", "threshold", "minimum")
