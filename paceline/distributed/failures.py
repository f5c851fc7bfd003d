"""What ranks tell the launcher of `--ranks` about their failure, so that the launcher can print one message, with its cause.

When a rank fails, the others fail after it, because they lose their connections to it. A failure therefore says whether it is
such a consequence.
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

from paceline.distributed.environment import FAILURES
from paceline.errors import PacelineError, UsageError


class LostRanks(PacelineError):
    """Another rank is gone."""


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
def told_to_launcher(rank: int) -> Iterator[None]:
    """Tell the launcher of an exception in the context. A message for the user is printed by the launcher, and not here."""
    try:
        yield
    except PacelineError as error:
        code, consequence = error.exit_code, isinstance(error, LostRanks)
        message = str(error) if code in (0, UsageError.exit_code) else f"rank {rank}: {error}"
        if tell(RankFailure(rank=rank, message=message, code=code, consequence=consequence)):
            sys.exit(code)
        raise
    except Exception as error:
        summary = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        tell(RankFailure(rank=rank, message=f"rank {rank} failed with {summary}; its traceback is above", code=1))
        raise


def tell(failure: RankFailure) -> bool:
    """Tell the launcher of `failure`, if there is one that wants to know."""
    descriptor = os.environ.get(FAILURES)
    if descriptor is None:
        return False
    with contextlib.suppress(OSError):  # the launcher prints what it has
        os.write(int(descriptor), json.dumps(asdict(failure)).encode() + b"\n")
    return True


def read(file: IO[bytes]) -> list[RankFailure]:
    """What the ranks have told, the earliest first."""
    file.seek(0)
    return [RankFailure(**json.loads(line)) for line in file.read().splitlines()]


def end_process(failure: RankFailure) -> None:
    """End this process at once, whatever its other threads wait for, and say why. A pool's guardian ends its simulators."""
    if not tell(failure):
        sys.stderr.write(f"paceline: {failure.message}\n")
        sys.stderr.flush()
    os._exit(failure.code)


def last_checkpoint(folder: Path | None) -> str:
    """Where a run in `folder` can be continued from, in words."""
    if folder is not None:
        with contextlib.suppress(OSError):
            name = (folder / "checkpoints" / "latest").read_text().strip()
            return f"the last good checkpoint is {folder / 'checkpoints' / name}"
    return "there is no checkpoint yet"
