"""Whether this process may open as many files as its workers take."""

from __future__ import annotations

import os

import psutil

from paceline.errors import UsageError

PER_WORKER = 3
"""Its commands, its crash report and its process."""
SPARE = 64
"""For the pool itself, and for whatever else the program opens later."""


def require_open_files(num_workers: int) -> None:
    """Raise the soft limit as far as needed and allowed; an error if that is not enough."""
    if os.name != "posix":
        return
    import resource

    taken = psutil.Process().num_fds() + SPARE
    needed = taken + PER_WORKER * num_workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    most = max(0, (hard - taken) // PER_WORKER)
    raise UsageError(
        f"{num_workers} workers need {needed} open files, and this process may have {hard} (ulimit -n); "
        f"allowed: at most {most} pool.workers, or a higher limit"
    )
