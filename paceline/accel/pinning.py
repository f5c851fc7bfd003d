"""Binds the threads of a library, each to a core of its own.

EnvPool's threads sleep between two batches. Linux tends to wake a thread on the core of the thread that wakes it, so
that several share a core for a while and others are idle. EnvPool can bind its threads itself, but it counts cores from
zero, even if the process may not use those cores, and cannot unbind them.
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
    """The result of `make`, and the threads that it started: none where they cannot be found, as outside Linux."""
    own = TASKS / str(threading.get_native_id()) / "comm"
    # A thread inherits the name of the thread that starts it.
    mark = f"mark {threading.get_native_id()}".encode()
    try:
        before = own.read_bytes().rstrip(b"\n")
        own.write_bytes(mark)
    except OSError:  # the file does not exist, or cannot be written
        return make(), []
    try:
        made = make()
    finally:
        with contextlib.suppress(OSError):
            own.write_bytes(before)
    return made, _threads_called(mark)


def bind(threads: Sequence[int], cores: Sequence[int]) -> None:
    """Bind each thread to one of `cores`, round robin, as far as the system allows."""
    for number, thread in enumerate(threads):
        _allow(thread, {cores[number % len(cores)]})


def unbind(threads: Sequence[int], cores: Sequence[int]) -> None:
    """Let all threads run on all of `cores`."""
    for thread in threads:
        _allow(thread, set(cores))


def _allow(thread: int, cores: set[int]) -> None:
    with contextlib.suppress(OSError):  # the thread has ended, or the system does not allow it
        os.sched_setaffinity(thread, cores)


def _threads_called(name: bytes) -> list[int]:
    found = []
    for task in TASKS.iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            if (task / "comm").read_bytes().rstrip(b"\n") == name:
                found.append(int(task.name))
    return sorted(found)
