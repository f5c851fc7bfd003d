"""Temporary handlers of Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

INTERRUPTED = 130
"""Exit code of a command that a signal stopped."""


def is_interactive() -> bool:
    """Whether a person types into this process: a notebook, IPython, or Python's own interpreter."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


@contextlib.contextmanager
def signals_handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Inside the context `handler` handles SIGINT and SIGTERM; afterwards the old handlers do.

    Outside the main thread, which alone may change handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Inside the context SIGINT and SIGTERM wait for its end. Processes that are started in it never get them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Inside the context SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does, so that what was begun is cleaned up.

    A handler that is already there stays. Outside the main thread nothing changes.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
