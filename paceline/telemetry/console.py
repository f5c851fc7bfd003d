"""The console that log messages and the live display share, so that a log message appears above the display."""

from __future__ import annotations

import functools
import logging
import sys

from rich.console import Console
from rich.logging import RichHandler


@functools.cache
def console() -> Console:
    """Writes to stderr; stdout is for results."""
    return Console(stderr=True)


def log_to_console() -> None:
    """Show the package's log messages. Without a terminal each is one plain line, never wrapped."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if console().is_terminal:
        handler = RichHandler(console=console(), show_path=False, show_time=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])


def print_line(text: str) -> None:
    """Print one line for the user as it is: no markup, no wrapping."""
    console().print(text, markup=False, highlight=False, soft_wrap=True)
