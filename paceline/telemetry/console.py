"""The one console that logs and the live display share: a line that is logged appears above the display, never under it."""

from __future__ import annotations

import logging
import sys

from rich.console import Console
from rich.logging import RichHandler

_shared: Console | None = None


def console() -> Console:
    """Writes to stderr, as stdout is for results."""
    global _shared
    if _shared is None:
        _shared = Console(stderr=True)
    return _shared


def log_to_console() -> None:
    """Show what the package logs. Without a terminal a message is one plain line, never wrapped."""
    handler: logging.Handler
    if console().is_terminal:
        handler = RichHandler(console=console(), show_path=False, show_time=False)
    else:
        handler = logging.StreamHandler(sys.stderr)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])


def say(text: str) -> None:
    """One line for the user, as it is: no markup, no wrapping."""
    console().print(text, markup=False, highlight=False, soft_wrap=True)
