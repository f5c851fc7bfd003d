"""Memory that a run is about to ask for, held against what there is."""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from paceline.errors import UsageError

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux says what a container may use."""


def require_memory(needed: int, device: torch.device, what: str, advice: str) -> None:
    """Raise a `UsageError` if `needed` bytes are more than `device` has left. The system would hand them out all the same, and kill
    the run when it uses them."""
    left = free_bytes(device)
    if needed > left:
        raise UsageError(
            f"{what} needs {needed / 2**30:.1f} GiB, and {'the GPU' if device.type == 'cuda' else 'this machine'} has "
            f"{left / 2**30:.1f} GiB left; allowed: {advice}"
        )


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
            device
        )  # by PyTorch, for its next tensors
        return torch.cuda.mem_get_info(device)[0] + kept
    return min(psutil.virtual_memory().available, _container_bytes())


def _container_bytes() -> int:
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit == "max":
            return 2**63
        counts = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        # Files that the system keeps in memory count as used, but make room for others.
        return int(limit) - int(used) + sum(int(counts.get(name, 0)) for name in ("inactive_file", "active_file"))
    except (OSError, ValueError):  # no container, or one of another kind
        return 2**63
