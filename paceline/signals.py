"""Temporary handlers of Ctrl-C, of SIGTERM, and of SIGHUP, which a terminal that is closed sends."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that stop a run."""
INTERRUPTED = 130
"""Exit code of a command that a signal stopped."""


def is_interactive() -> bool:
    """Whether a person types into this process: a notebook, IPython, or Python's own interpreter."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


@contextlib.contextmanager
def signals_handled_by(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Inside the context `handler` handles SIGINT, SIGTERM and SIGHUP; afterwards the old handlers do.

    Under nohup SIGHUP stays ignored. Outside the main thread, which alone may change handlers, nothing changes.
    """
    if not _in_main_thread():
        yield
        return
    under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    numbers = [number for number in STOPPING if not (under_nohup and number == signal.SIGHUP)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def take_back(handler: Callable[[int, object], None], accepted: Mapping[int, Any]) -> None:
    """Let `handler` handle the signals again that other code has taken from it, but for SIGHUP under nohup. A signal
    with an `accepted` handler gets that one."""
    if not _in_main_thread():
        return
    for number in STOPPING:
        present, wanted = signal.getsignal(number), accepted.get(number, handler)
        if present != wanted and not (number == signal.SIGHUP and present == signal.SIG_IGN):
            signal.signal(number, wanted)


@contextlib.contextmanager
def noting_new_handlers(noted: dict[int, Any]) -> Iterator[None]:
    """At the end of the context `noted` has the handlers, by signal, that code in it has installed. Only the main
    thread can install any."""
    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            present = signal.getsignal(number)
            if present is not None and present != handler:
                noted[number] = present


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """At the end of the context the handlers are those of its beginning: a simulator may install its own inside."""
    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Inside the context SIGINT, SIGTERM and SIGHUP wait for its end. Processes started in it never get them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Inside the context SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does, so that what was begun is cleaned up.

    A handler that is already there stays. Outside the main thread nothing changes.
    """
    if not _in_main_thread() or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
