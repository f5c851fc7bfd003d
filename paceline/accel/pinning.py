"""Threads of a library that starts its own, each on a core of its own.

EnvPool's threads sleep between two batches, and the one that sends wakes them. Linux likes to wake a thread on the core of the
one that wakes it, so that for a while several share a core while others have nothing to do. EnvPool can bind its threads itself, but
counts cores from zero, whichever this process may use, and for good.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

Made = TypeVar("Made")
TASKS = Path("/proc/self/task")


def make_noting_threads(make: Callable[[], Made]) -> tuple[Made, list[int]]:
    """What `make` makes, and the threads that it starts; none where they cannot be told, as anywhere but on Linux."""
    own = TASKS / str(threading.get_native_id()) / "comm"
    # A thread takes over the name of the one that starts it: that is how they are known.
    mark = f"mark {threading.get_native_id()}".encode()
    try:
        before = own.read_bytes().rstrip(b"\n")
        own.write_bytes(mark)
    except OSError:  # there is no such file, or it is not to be written to
        return make(), []
    try:
        made = make()
    finally:
        with contextlib.suppress(OSError):
            own.write_bytes(before)
    return made, _threads_called(mark)


def bind(threads: Sequence[int], cores: Sequence[int]) -> None:
    """Each to one of `cores`, round robin, as far as the system lets us."""
    for number, thread in enumerate(threads):
        _allow(thread, {cores[number % len(cores)]})


def unbind(threads: Sequence[int], cores: Sequence[int]) -> None:
    """All to all of `cores`."""
    for thread in threads:
        _allow(thread, set(cores))


def _allow(thread: int, cores: set[int]) -> None:
    with contextlib.suppress(OSError):  # it has ended, or that is not ours to decide
        os.sched_setaffinity(thread, cores)


def _threads_called(name: bytes) -> list[int]:
    found = []
    for task in TASKS.iterdir():
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_bytes().rstrip(b"\n") == name:
                found.append(int(task.name))
    return sorted(found)
