"""Runs one measurement in its own process: a command that prints `RESULT {...}`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from paceline.distributed.launch import end_with_parent
from paceline.errors import PacelineError, extra_hint

MISSING = re.compile(r"No module named '(?P<module>[\w.]+)'")


class Watch(NamedTuple):
    """A function that is called while a measurement runs."""

    seconds: float
    """Time between two calls."""
    look: Callable[[int], None]
    """Called with the id of the process."""


class CellError(PacelineError):
    """A measurement gave no result. The first line says why."""


def run_cell(command: Sequence[str], timeout_seconds: float = 300, watch: Watch | None = None) -> dict[str, Any]:
    """The result that the command prints. `CellError` if it prints none, or not in time.

    The command has its own process group, which is killed at the end. Otherwise simulators and workers that outlive
    their parent would disturb the next measurement. It also ends when this process is killed.
    """
    # Not pipes: a process that stays alive would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, start_new_session=True, preexec_fn=end_with_parent
        )
        try:
            in_time = wait(process, timeout_seconds, watch)
        finally:
            end_group(process)
        output.seek(0)
        errors.seek(0)
        printed, said = output.read(), errors.read()
    for line in printed.splitlines():
        if line.startswith("RESULT "):
            return json.loads(line.removeprefix("RESULT "))
    problem = f"status {process.returncode}" if in_time else f"not finished after {timeout_seconds:.0f} seconds"
    reason = last_line(said) or last_line(printed) or "no output"
    if missing := MISSING.search(reason):
        raise CellError(f"{missing[0]}{extra_hint(ModuleNotFoundError(missing[0], name=missing['module']))}")
    raise CellError(f"{problem}: {reason}\n{' '.join(command)}\n{printed}\n{said}")


def wait(process: subprocess.Popen, timeout_seconds: float, watch: Watch | None) -> bool:
    """Whether the process ends by itself in time. `watch` is called until then."""
    deadline = time.monotonic() + timeout_seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            process.wait(left if watch is None else min(left, watch.seconds))
            return True
        except subprocess.TimeoutExpired:
            if watch is not None:
                watch.look(process.pid)
    return False


def run_module(
    module: str, options: dict[str, Any], timeout_seconds: float = 300, watch: Watch | None = None
) -> dict[str, Any]:
    """Run one of our modules, which takes its options as one JSON object."""
    return run_cell([sys.executable, "-m", module, json.dumps(options)], timeout_seconds, watch)


def run_file(python: Path, file: Path, options: dict[str, Any], timeout_seconds: float = 300) -> dict[str, Any]:
    """Run a file with the Python of another environment, where Paceline is not installed."""
    return run_cell([str(python), str(file), json.dumps(options)], timeout_seconds)


def end_group(process: subprocess.Popen) -> None:
    """Kill a process that was started with `start_new_session`, and its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(text: str) -> str:
    """The last line that is not empty. In a traceback it is the error."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
