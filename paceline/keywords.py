"""Settings in messages: options of the command line in a command, keywords in Python.

Messages are written for the command line, as in `--pool.num-envs`. Functions of the Python API raise the same errors
with Python's name, `pool.num_envs`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

from paceline.config import Config, leaves
from paceline.errors import PacelineError

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
NAMES = {
    "run-dir": "folder",
    "resume": "resume=True",
    "from-checkpoint": "resume",
    "checkpoint": "checkpoint",
    "trust": "trust=True",
}
"""Options that are no settings, and how Python calls them."""
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9.-]*[a-z0-9])")
COMMAND = re.compile(r"(paceline [a-z]+(?: --[a-z-]+)+)")
ENV = re.compile(r"(?<![\w-])--env ([^\s;,]+:[^\s;,]+)")

_is_command = ContextVar("_is_command", default=False)


@contextlib.contextmanager
def options_in_messages() -> Iterator[None]:
    """Inside the context, the Python API leaves messages as they are: a command uses it."""
    token = _is_command.set(True)
    try:
        yield
    finally:
        _is_command.reset(token)


def keywords_in_messages(function: FunctionT) -> FunctionT:
    """A function of the Python API, whose errors name keywords."""

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        try:
            return function(*arguments, **keywords)
        except PacelineError as error:
            if not _is_command.get() and error.args and isinstance(error.args[0], str):
                error.args = (as_keywords(error.args[0]), *error.args[1:])
            raise

    return call  # type: ignore[return-value]


def as_keywords(message: str) -> str:
    """A message with Python's names of all options that it mentions. Whole commands stay.

    >>> as_keywords("fewer --pool.num-envs, or --replay.no-prioritized; --resume continues it")
    'fewer pool.num_envs, or replay.prioritized=False; resume=True continues it'
    >>> as_keywords("paceline population --resume continues it")
    'paceline population --resume continues it'
    """
    parts = COMMAND.split(message)
    parts[::2] = [OPTION.sub(_as_keyword, ENV.sub(r'env="\1"', part)) for part in parts[::2]]
    return "".join(parts)


def _as_keyword(option: re.Match[str]) -> str:
    name = option[1].replace("-", "_")
    positive = re.sub(r"(^|\.)no_", r"\1", name)
    if option[1] in NAMES:
        return NAMES[option[1]]
    if name in _settings():
        return name
    return f"{positive}=False" if positive in _settings() else option[0]


@functools.cache
def _settings() -> frozenset[str]:
    return frozenset(leaves(Config()))
