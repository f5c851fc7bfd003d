"""Memory that a pool shares with its workers.

It has a file descriptor and no name, so the kernel frees it when its last process ends, even by `kill -9`. Named
segments (`multiprocessing.shared_memory`) would stay behind.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile

import numpy as np

from paceline.errors import UsageError
from paceline.pool.heartbeat import Heartbeat
from paceline.pool.protocol import PoolSpec
from paceline.pool.table import SlotTable


def create(label: str) -> int:
    """A file descriptor of empty anonymous memory."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"paceline-{label}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def resize(fd: int, spec: PoolSpec, num_workers: int) -> None:
    """Make room for what `attach` lays out."""
    os.ftruncate(fd, Heartbeat.nbytes(num_workers) + SlotTable.nbytes(spec))


def attach(fd: int, spec: PoolSpec, num_workers: int) -> tuple[mmap.mmap, Heartbeat, SlotTable]:
    """Map the memory: heartbeats first, then the slot table."""
    shared = mmap.mmap(fd, os.fstat(fd).st_size)
    view = memoryview(shared)
    return shared, Heartbeat(view, num_workers), SlotTable(spec, view[Heartbeat.nbytes(num_workers) :])


def pin(shared: mmap.mmap) -> int:
    """Register the memory with CUDA, so that copies to and from a device are asynchronous and need no staging buffer.

    Returns the address for `unpin`, which must run before the memory is unmapped. Otherwise CUDA takes whatever the
    system maps there next for pinned memory.
    """
    import torch

    if not torch.cuda.is_available():
        raise UsageError("pool.pin_memory needs CUDA, which is not available here")
    address = np.frombuffer(shared, np.uint8).ctypes.data
    error = torch.cuda.cudart().cudaHostRegister(address, len(shared), 0)
    if int(error) != 0:
        raise RuntimeError(f"cudaHostRegister failed with error {int(error)}")
    return address


def unpin(address: int) -> None:
    """Undo `pin` after all pending copies."""
    import torch

    with contextlib.suppress(RuntimeError):  # a device that has failed copies nothing any more
        torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(address)
