"""While training, the process keeps the memory that it frees.

By default glibc returns large blocks to the system, which hands them out again page by page and zeroed. For updates on
images that takes a large part of the time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from paceline.accel.processor import ON_ARM

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""glibc's M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX."""
LARGEST_MMAP_THRESHOLD = 2**25
"""The highest threshold that glibc chooses by itself, as a program frees large blocks."""

_is_kept = False


def keep_freed_memory() -> None:
    """Keep freed memory for the next tensors. The process then stays at its highest memory use.

    Call it before other threads allocate: it also makes all threads share one heap. It does nothing without glibc, or
    on ARM, where PyTorch has an allocator of its own.
    """
    global _is_kept
    mallopt = _function("mallopt")
    if mallopt is None or ON_ARM:
        return
    _is_kept = True
    mallopt(TRIM_THRESHOLD, -1)  # never
    if not mallopt(MMAP_THRESHOLD, 2**30):
        mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)  # older versions allow no more
    mallopt(ARENA_MAX, 1)


def give_freed_memory_back() -> None:
    """Undo `keep_freed_memory`: free memory goes back to the system now, and large blocks do when they are freed.

    Two things cannot be undone. The thresholds stay fixed, where glibc would end in a program that frees large blocks.
    Threads keep sharing one heap.
    """
    global _is_kept
    if not _is_kept:
        return
    mallopt, trim = _function("mallopt"), _function("malloc_trim")
    assert mallopt is not None
    mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
    mallopt(TRIM_THRESHOLD, 2 * LARGEST_MMAP_THRESHOLD)
    if trim is not None:
        trim(0)
    _is_kept = False


def _function(name: str) -> Callable[..., int] | None:
    """A function of the C library; None if it has none of that name."""
    return getattr(ctypes.CDLL(None), name, None)
