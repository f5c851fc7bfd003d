"""What the launcher of `--ranks` and its ranks tell each other: environment variables, and why a rank failed.

When one rank fails, the other ranks lose their connections to it and fail too. A reported failure says whether it is
only a consequence, so that the launcher can print one message: the cause.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from paceline.errors import PacelineError, UsageError

RESTARTS = "TORCHELASTIC_RESTART_COUNT"
"""How often the ranks have been restarted. It is torchrun's variable; our launcher sets it too."""
SOCKET = "PACELINE_LISTENING_SOCKET"
"""File descriptor of the socket that rank 0 inherits to serve the store."""
FAILURES = "PACELINE_FAILURES"
"""File descriptor of the file to which ranks write their failures."""


class LostConnection(PacelineError):
    """The connection to another rank is gone."""


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """Why a rank ended."""

    rank: int
    message: str
    code: int
    """The rank's exit code."""
    consequence: bool = False
    """Whether another rank's failure is the cause."""


@contextlib.contextmanager
def report_to_launcher(rank: int) -> Iterator[None]:
    """Report an exception inside the context to the launcher, which then prints the message for the user."""
    try:
        yield
    except PacelineError as error:
        code, consequence = error.exit_code, isinstance(error, LostConnection)
        is_whole = error.names_rank or code in (0, UsageError.exit_code)
        message = str(error) if is_whole else f"rank {rank}: {error}"
        if report(RankFailure(rank=rank, message=message, code=code, consequence=consequence)):
            sys.exit(code)
        raise
    except Exception as error:
        summary = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        report(RankFailure(rank=rank, message=f"rank {rank} failed with {summary}; its traceback is above", code=1))
        raise


def report(failure: RankFailure) -> bool:
    """Report `failure` to the launcher. False if there is no launcher."""
    descriptor = os.environ.get(FAILURES)
    if descriptor is None:
        return False
    with contextlib.suppress(OSError):  # then the launcher prints the failures that it has
        os.write(int(descriptor), json.dumps(asdict(failure)).encode() + b"\n")
    return True


def read_failures(file: IO[bytes]) -> list[RankFailure]:
    """The failures that ranks have reported, in order of time."""
    file.seek(0)
    return [RankFailure(**json.loads(line)) for line in file.read().splitlines()]


def end_process(failure: RankFailure) -> None:
    """Report `failure` and end this process at once, even if threads hang. Guardian processes end its simulators."""
    if not report(failure) and sys.stderr is not None:  # stderr may be closed
        sys.stderr.write(f"paceline: {failure.message}\n")
        sys.stderr.flush()
    os._exit(failure.code)


def describe_last_checkpoint(folder: Path | None) -> str:
    """A phrase that names the last checkpoint of the run in `folder`, for error messages."""
    if folder is not None:
        with contextlib.suppress(OSError):
            name = (folder / "checkpoints" / "latest").read_text().strip()
            return f"the last good checkpoint is {folder / 'checkpoints' / name}"
    return "there is no checkpoint yet"
