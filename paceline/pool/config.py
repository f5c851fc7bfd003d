"""Settings of simulator pools."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

from paceline.checks import convert_numbers
from paceline.errors import UsageError

Kind = Literal["auto", "serial", "process", "envpool", "tensor"]


@dataclass(frozen=True, kw_only=True)
class PoolConfig:
    """How many simulators, where they run, and what happens when one fails."""

    kind: Kind = "auto"
    """The backend: this process (serial), worker processes (process), EnvPool's threads (envpool), tensors on a device
    (tensor), or the fastest in a short measurement (auto)."""
    num_envs: int = 16
    """Environment instances."""
    workers: int | None = None
    """Worker processes (process) or threads (envpool). By default a short measurement chooses."""
    groups: int = 1
    """Groups of slots that take turns. 2 is double buffering."""
    on_error: Literal["stop", "restart"] = "stop"
    """When an environment raises or returns something invalid: end the run, or replace the environment."""
    max_restarts_per_hour: int = 20
    """Most replacements of simulators in any hour. One more ends the run."""
    max_restarts: int | None = None
    """Most replacements of simulators in total. Overrides `max_restarts_per_hour`."""
    step_timeout_seconds: float = 60.0
    """A longer step, reset, save or restore of one environment counts as hung. `serial` pools cannot detect it because
    their environments run in the training process."""
    start_timeout_seconds: float = 180.0
    """Time limit for making the environments of one worker, and for making one environment again."""
    nice: int = 5
    """Added to the niceness of workers, so that inference and learning go first on a crowded machine."""
    affinity: bool | None = None
    """Bind each worker to one core, round robin. By default only EnvPool's threads are bound, and only where one rank
    has one thread per core and the duration of batches makes it worthwhile."""
    pin_memory: bool = False
    """Register the shared memory with CUDA, so that copies to the device need no staging buffer."""
    cuda_graphs: bool = True
    """Record the steps of batched simulators on a GPU as CUDA graphs where possible."""
    leak_megabytes: float = 512.0
    """Warn about a worker whose memory has grown by more than this since its first minute."""

    def __post_init__(self) -> None:
        convert_numbers(self, "pool")
        least = {"num_envs": 1, "groups": 1, "workers": 1, "max_restarts_per_hour": 0, "max_restarts": 0, "nice": 0}
        for name, minimum in least.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise UsageError(f"pool.{name} must be at least {minimum}, got {value}")
        for name in ("step_timeout_seconds", "start_timeout_seconds", "leak_megabytes"):
            if not getattr(self, name) > 0:
                raise UsageError(f"pool.{name} must be above 0, got {getattr(self, name)}")
        if self.groups > self.num_envs:
            raise UsageError(f"pool.groups is {self.groups}, but there are only {self.num_envs} environments")
        for name, allowed in (("kind", get_args(Kind)), ("on_error", ("stop", "restart"))):
            if getattr(self, name) not in allowed:
                raise UsageError(f"pool.{name} {getattr(self, name)!r} does not exist; allowed: {', '.join(allowed)}")


def available_core_ids() -> list[int]:
    """The cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
