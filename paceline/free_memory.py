"""Checks before a large allocation that the memory is there."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from paceline.errors import UsageError

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux publishes the limits of a container."""


def require_memory(needed: int, device: torch.device, what: str, advice: str) -> None:
    """Raise a `UsageError` if `device` has less than `needed` bytes left.

    Without this check the system would grant the allocation, and kill the run later, when it uses the memory.
    """
    left = free_bytes(device)
    if needed > left:
        raise UsageError(
            f"{what} needs {needed / 2**30:.1f} GiB, and {'the GPU' if device.type == 'cuda' else 'this machine'} has "
            f"{left / 2**30:.1f} GiB left; allowed: {advice}"
        )


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        cached_by_torch = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached_by_torch
    return min(psutil.virtual_memory().available, _container_bytes())


def _container_bytes() -> int:
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit == "max":
            return 2**63
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        # The file cache counts as used, but the system drops it when memory is needed.
        return int(limit) - int(used) + sum(int(counts.get(name, 0)) for name in ("inactive_file", "active_file"))
    except (OSError, ValueError):  # no container, or another kind of container
        return 2**63
