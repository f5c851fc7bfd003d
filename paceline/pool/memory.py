"""Memory shared between a pool and its workers that cannot be left behind.

It has a file descriptor and no name: whichever way the last process that holds it ends, the kernel frees it. (Named
segments, as `multiprocessing.shared_memory` makes them, survive a `kill -9`.)
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile


def create(label: str) -> int:
    """A descriptor of anonymous memory, still empty: `resize` and `attach` it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"paceline-{label}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def resize(fd: int, nbytes: int) -> None:
    os.ftruncate(fd, nbytes)


def attach(fd: int) -> mmap.mmap:
    """The whole of the memory behind `fd`, readable and writable by everyone who attached it."""
    return mmap.mmap(fd, os.fstat(fd).st_size)


def pin(shared: mmap.mmap) -> int:
    """Register attached memory with CUDA, so that copies between it and a device are asynchronous and unstaged. Returns
    its address, which `unpin` must be given before the memory is unmapped: CUDA would take whatever comes to lie there for
    pinned."""
    import numpy as np
    import torch

    from paceline.errors import UsageError

    if not torch.cuda.is_available():
        raise UsageError("pool.pin_memory needs CUDA, which is not available here")
    address = np.frombuffer(shared, np.uint8).ctypes.data
    error = torch.cuda.cudart().cudaHostRegister(address, len(shared), 0)
    if int(error) != 0:
        raise RuntimeError(f"cudaHostRegister failed with error {int(error)}")
    return address


def unpin(address: int) -> None:
    """The end of `pin`. Copies that are still under way are waited for."""
    import torch

    with contextlib.suppress(RuntimeError):  # a device that has failed copies nothing any more
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)
