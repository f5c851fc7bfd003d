"""The number of this process among the ranks. Free of PyTorch: the command line reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Where this process stands among the ranks."""

    rank: int = 0
    """The number of this process among all ranks of all machines."""
    size: int = 1
    """The number of ranks."""
    local_rank: int = 0
    """The number of this process among the ranks of its machine. It selects the GPU."""

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> RankInfo:
        """The place that torchrun or srun wrote to the environment. Without them, this process is a group of one."""
        for rank, size, local in (
            ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ):
            if rank in environment and size in environment:
                return cls(
                    rank=int(environment[rank]), size=int(environment[size]), local_rank=int(environment.get(local, 0))
                )
        return cls()
