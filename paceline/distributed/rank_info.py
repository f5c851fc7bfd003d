"""The number of this process among the ranks. Free of PyTorch: the command line reads it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.errors import UsageError


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
        """The place that torchrun or srun wrote to the environment. Without them, this process is a group of one.

        In a SLURM job, a process that srun has not started sees the number of the job's tasks, but is none of them.
        """
        for rank, size, local in (
            ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
            ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
        ):
            if rank in environment and size in environment:
                rank_, size_ = _number(environment, rank, 0), _number(environment, size, 1)
                if rank_ >= size_:
                    raise UsageError(f"the environment variable {rank} is {rank_}; allowed: less than {size}, {size_}")
                local_rank = _number(environment, local, 0) if local in environment else 0
                return cls(rank=rank_, size=size_, local_rank=local_rank)
        return cls()


def _number(environment: Mapping[str, str], name: str, least: int) -> int:
    with contextlib.suppress(ValueError):
        if (number := int(environment[name])) >= least:
            return number
    raise UsageError(
        f"the environment variable {name} is {environment[name]!r}; allowed: a whole number, at least {least}"
    )
