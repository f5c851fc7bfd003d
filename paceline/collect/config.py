"""Settings of collection. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.checks import require_above_0, require_at_least, require_share
from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How many slots one inference batch holds, in systems that do not wait for all environments."""

    minimum: float | None = None
    """Wait for this share of the slots. None: a quarter. If environments share worker processes: an eighth, or a half
    on at most four cores (all under appo, which learns on the same cores). If environments step together: the first
    ready."""
    maximum: float = 1.0
    """The largest share of the slots in one batch."""
    patience: float | None = None
    """The longest wait for that minimum, in units of the mean inference time. None: 1, or 4 if environments share
    worker processes on at most four cores."""

    def __post_init__(self) -> None:
        require_share(self, "batching", "minimum", "maximum", positive=True)
        require_at_least(self, "batching", 0, "patience")
        if self.minimum is not None and self.minimum > self.maximum:
            raise UsageError(f"batching.minimum {self.minimum} must not be above batching.maximum {self.maximum}")


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """Ray actors that collect for d4pg in addition to the run's own pool, on this machine or on others."""

    actors: int = 0
    """Number of actors per rank. Each has a pool like the run's own."""
    address: str | None = None
    """Address of a Ray cluster. None: start a cluster for this run that only this machine can reach."""
    insecure: bool = False
    """Use a Ray cluster that other machines can reach without a token (see RAY_AUTH_MODE)."""
    cores: float = 1.0
    """Cores per actor. Ray uses this number to place actors on machines."""
    transitions: int = 200
    """The least number of transitions that an actor sends at once."""
    max_restarts_per_hour: int = 10
    """Lost actors to replace within an hour, times `actors`. All actors share them. More end the run with an error."""

    def __post_init__(self) -> None:
        require_at_least(self, "remote", 0, "actors", "max_restarts_per_hour")
        require_at_least(self, "remote", 1, "transitions")
        require_above_0(self, "remote", "cores")
