"""What the C library does with freed memory: while training, the process keeps it.

By default large blocks go back to the system, which hands them out again page by page and zeroed: of an update on 1,024 images of
128x72x3 that was a quarter of the time or more (a Xeon, one thread, with glibc's environment variables for the same).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from paceline.accel.processor import ON_ARM

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
"""What glibc's mallopt calls M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_ARENA_MAX."""
LARGEST_MMAP_THRESHOLD = 2**25
"""What glibc, left alone, raises its threshold to at most, as a program frees large blocks."""

_is_kept = False


def keep_freed_memory() -> None:
    """Let this process keep what it frees, for its next tensors. Memory then stays at the most that was ever used. To be called before
    other threads allocate anything: their heaps are bounded, the process's own is not. Nothing is changed where there is no glibc, nor
    on ARM, where PyTorch brings an allocator."""
    global _is_kept
    mallopt = _function("mallopt")
    if mallopt is None or ON_ARM:
        return
    _is_kept = True
    mallopt(TRIM_THRESHOLD, -1)  # never
    if not mallopt(MMAP_THRESHOLD, 2**30):
        mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)  # the most that older versions allow
    mallopt(ARENA_MAX, 1)


def give_freed_memory_back() -> None:
    """The opposite of `keep_freed_memory`, where that was called: what is free now goes back to the system, and large blocks do so from
    now on. Two things cannot be undone. Thresholds stay where they are, while glibc would adjust them: they are where it would have ended
    in a program that frees large blocks. Threads keep on sharing one heap."""
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
    """Of the C library; None where it has none such."""
    return getattr(ctypes.CDLL(None), name, None)
