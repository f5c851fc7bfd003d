"""The console that log messages and the live display share, so that a log message appears above the display."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import logging
import os
import sys
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.logging import RichHandler


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Inside the context, what this process and those that it starts write to stdout goes to stderr."""
    stdout = sys.stdout
    try:
        saved = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)  # not as file 2, if stderr is closed
    except OSError:  # it is closed
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    try:
        _flush(stdout)
        _replace_stdout()
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _flush(stdout)
        os.dup2(saved, 1)
        os.close(saved)


def _replace_stdout() -> None:
    """Let file 1 lead where stderr does; nowhere if that is closed."""
    try:
        os.dup2(2, 1)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.close(nowhere)


def _flush(stdout: TextIO) -> None:
    """Write out what Python and compiled code have printed to stdout."""
    for stream in (stdout, sys.__stdout__):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
    ctypes.CDLL(None).fflush(None)


@functools.cache
def console() -> Console:
    """Writes to stderr; stdout is for results. FORCE_COLOR colours a file, and animates nothing there."""
    return Console(stderr=True, force_interactive=None if _is_terminal() else False)


def _is_terminal() -> bool:
    """Whether stderr is one. Python has no stderr where it was closed before the start, as by `2>&-`."""
    return sys.stderr is not None and sys.stderr.isatty()


def log_to_console() -> None:
    """Show the package's log messages. Without a terminal each is one plain line, never wrapped."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if console().is_terminal:
        handler = RichHandler(console=console(), show_path=False, show_time=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])


def status(text: str) -> contextlib.AbstractContextManager[object]:
    """Inside the context a terminal shows `text` with a spinner."""
    return console().status(text) if console().is_interactive else contextlib.nullcontext()


def show_cursor() -> None:
    """Show the terminal's cursor, which a live display hides. A signal handler may call it at any moment."""
    with contextlib.suppress(OSError, ValueError):
        if _is_terminal():
            os.write(sys.stderr.fileno(), b"\x1b[?25h")


def print_line(text: str) -> None:
    """Print one line for the user as it is: no markup, no wrapping. If nobody reads it any more, training goes on."""
    with contextlib.suppress(OSError, SystemExit):  # Rich exits when a pipe is closed, as by Ctrl-C in `... | tee log`
        console().print(text, markup=False, highlight=False, soft_wrap=True)
