"""Settings of collection. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BatchingConfig:
    """How many slots are decided for together by systems that do not wait for all."""

    minimum: float | None = None
    """Wait for this share of the slots (by default a quarter; where environments share workers an eighth, or on few cores half, and all
    under appo, if these learn as well meanwhile; where they step together, for the first) ..."""
    maximum: float = 1.0
    """... take at most this share at once ..."""
    patience: float | None = None
    """... and wait no longer than so many times what a decision takes (by default 1, or 4 where environments share workers
    on few cores)."""

    def __post_init__(self) -> None:
        for name in ("minimum", "maximum"):
            share = getattr(self, name)
            if share is not None and not 0 < share <= 1:
                raise UsageError(f"batching.{name} must be above 0 and at most 1, got {share}")
        if self.minimum is not None and self.minimum > self.maximum:
            raise UsageError(f"batching.minimum {self.minimum} must not be above batching.maximum {self.maximum}")
        if self.patience is not None and self.patience < 0:
            raise UsageError(f"batching.patience must be at least 0, got {self.patience}")


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """Actors on other machines, or in other processes of this one, beside the run's own pool (d4pg only)."""

    actors: int = 0
    """How many, of every rank; each has a pool like the run's own."""
    address: str | None = None
    """Of a Ray cluster; by default one is started for this run, which only this machine can reach."""
    insecure: bool = False
    """Use a Ray cluster that other machines can reach without a token (see RAY_AUTH_MODE)."""
    cores: float = 1.0
    """Of each actor, by which Ray decides how many fit on a machine."""
    transitions: int = 200
    """An actor sends so many at once, at least."""
    max_restarts: int = 10
    """How many actors may be replaced before the run ends."""

    def __post_init__(self) -> None:
        for name, least in (("actors", 0), ("transitions", 1), ("max_restarts", 0)):
            if getattr(self, name) < least:
                raise UsageError(f"remote.{name} must be at least {least}, got {getattr(self, name)}")
        if not self.cores > 0:
            raise UsageError(f"remote.cores must be above 0, got {self.cores}")
