"""One measurement, in a process of its own: a command that prints `RESULT {...}`. What it leaves running is ended."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Watch(NamedTuple):
    """Something that looks at a measurement while it runs."""

    seconds: float
    """Between two looks."""
    look: Callable[[int], None]
    """Gets the process's id."""


class CellError(RuntimeError):
    """A measurement that gave no result; its first line says why."""


def run_cell(command: Sequence[str], timeout_seconds: float = 300, watch: Watch | None = None) -> dict[str, Any]:
    """What the command printed as its result. `CellError` if there is none, also when the time is over.

    The command gets a process group of its own, which is killed at the end: simulators and workers that outlive the
    process which started them would take their share of the next measurement.
    """
    # Files and not pipes: a process that is left running would keep a pipe open.
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)
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
    reason = last_line(said) or last_line(printed) or "it said nothing"
    raise CellError(f"{problem}: {reason}\n{' '.join(command)}\n{printed}\n{said}")


def wait(process: subprocess.Popen, timeout_seconds: float, watch: Watch | None) -> bool:
    """Whether the process ended by itself in time; `watch` sees it until then."""
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
    """`run_cell` of one of our modules that takes its options as one JSON object."""
    return run_cell([sys.executable, "-m", module, json.dumps(options)], timeout_seconds, watch)


def run_file(python: Path, file: Path, options: dict[str, Any], timeout_seconds: float = 300) -> dict[str, Any]:
    """`run_cell` of a file, by the Python of another environment, in which we are not installed."""
    return run_cell([str(python), str(file), json.dumps(options)], timeout_seconds)


def end_group(process: subprocess.Popen) -> None:
    """Kill a process that was started with `start_new_session`, and everything that it started and did not set free."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(text: str) -> str:
    """The last line with anything in it: of a traceback, the error itself."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
