"""Temporary handlers of Ctrl-C and SIGTERM."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

INTERRUPTED = 130
"""Exit code of a command that a signal stopped."""


@contextlib.contextmanager
def signals_handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Inside the context `handler` handles SIGINT and SIGTERM; afterwards the old handlers do. Main thread only."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)
