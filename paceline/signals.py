"""Ctrl-C and SIGTERM: for a while, something else is done about them than usual."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

INTERRUPTED = 130
"""The exit code of a command that a signal has stopped."""


@contextlib.contextmanager
def handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Within the context `handler` gets the number of every one of them; after it everything is as before. For the main thread."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
