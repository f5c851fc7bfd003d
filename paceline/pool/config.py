"""How simulators are run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from paceline.errors import UsageError

Kind = Literal["auto", "serial", "process", "envpool", "tensor"]


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How many simulators, where they run, and what happens when one fails."""

    kind: Kind = "auto"
    """The backend: in this process (serial), in worker processes (process), EnvPool's threads (envpool), tensors on a
    device (tensor), or whichever a short measurement finds fastest (auto)."""
    num_envs: int = 16
    """Environment instances."""
    workers: int | None = None
    """Worker processes (process) or threads (envpool); by default chosen by a short measurement."""
    groups: int = 1
    """Groups of slots that take turns; 2 is double buffering."""
    on_error: Literal["stop", "restart"] = "stop"
    """When an environment's own code raises or returns something invalid: end the run, or replace the environment."""
    max_restarts_per_hour: int = 20
    """How many times in any hour a simulator may be replaced. One more ends the run."""
    max_restarts: int | None = None
    """How many times in all a simulator may be replaced, in place of `max_restarts_per_hour`."""
    step_timeout_seconds: float = 60.0
    """A step or reset that takes longer counts as hung, as does the saving or restoring of one environment. `serial` pools cannot
    notice that: their environments run in the training process."""
    start_timeout_seconds: float = 180.0
    """Making the environments of one worker may take this long, and so may making one anew."""
    nice: int = 5
    """Added to the workers' niceness, so that inference and learning go first on a crowded machine."""
    affinity: bool | None = None
    """Bind each worker to one core, round robin; by default only EnvPool's threads, where there is one rank on the machine, one thread
    for each core, and batches take as long as makes them gain from it."""
    pin_memory: bool = False
    """Register the shared memory with CUDA, so that copies to the device need no staging."""
    cuda_graphs: bool = True
    """Record the steps of batched simulators on a GPU, where they can be."""
    leak_megabytes: float = 512.0
    """Report a worker whose memory has grown by more than this since its first minute."""

    def __post_init__(self) -> None:
        _at_least("num_envs", self.num_envs, 1)
        _at_least("groups", self.groups, 1)
        _at_least("max_restarts_per_hour", self.max_restarts_per_hour, 0)
        if self.max_restarts is not None:
            _at_least("max_restarts", self.max_restarts, 0)
        _at_least("nice", self.nice, 0)
        if self.workers is not None:
            _at_least("workers", self.workers, 1)
        for name in ("step_timeout_seconds", "start_timeout_seconds", "leak_megabytes"):
            if not getattr(self, name) > 0:
                raise UsageError(f"pool.{name} must be above 0, got {getattr(self, name)}")
        if self.groups > self.num_envs:
            raise UsageError(f"pool.groups is {self.groups}, but there are only {self.num_envs} environments")
        for name, allowed in (("kind", get_args(Kind)), ("on_error", ("stop", "restart"))):
            if getattr(self, name) not in allowed:
                raise UsageError(f"pool.{name} {getattr(self, name)!r} does not exist; allowed: {', '.join(allowed)}")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise UsageError(f"pool.{name} must be at least {least}, got {value}")


def available_core_ids() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
