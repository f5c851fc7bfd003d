"""Opens the run folder for writing. It reports problems with the folder before anything else starts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from paceline.errors import PacelineError, UsageError
from paceline.files import DiskFull, cannot_write, flush, remove_temporaries

log = logging.getLogger(__name__)

UNFINISHED_CONFIG = re.compile(r"\.config(\.json)?\.\d+\.(json|sig)")
"""Matches what a killed run leaves of config.json and its signature."""
REPORTS = ("metrics.jsonl", "tensorboard", "population.jsonl", "ratings.json")
"""What a run adds to while it trains."""
MEMBERS_FILE, EXCHANGE, SWEEP_FILE = "members.json", "exchange", "sweep.json"
"""In the folder of a population: the file with the number of members, and the folder in which they publish results. In
the folder of a sweep: the file that says what it searches."""
HELD = {
    "checkpoints/latest": ("run", "--resume"),
    MEMBERS_FILE: ("population", "paceline population --resume"),
    EXCHANGE: ("population", "paceline population --resume"),
    SWEEP_FILE: ("sweep", "its own command"),
}
"""By a file in the folder: what the folder then holds, and the command that continues it."""
TRIAL_BYTES = 64 * 1024
"""Size of the trial file. If it does not fit on the disk, the first report would not fit either."""


@dataclass
class OpenFolder:
    """A run folder that is open for writing."""

    is_used: bool = False
    """Whether the folder holds work that must stay, also after a usage error."""


@contextlib.contextmanager
def open_run_folder(folder: Path) -> Iterator[OpenFolder]:
    """Create and lock `folder`, and check that files can be written, renamed and removed in it. Only rank 0 does this.

    If this call created the folder, it is deleted again if it is empty, or after a usage error unless it is used.
    """
    made: list[Path] = []
    opened = OpenFolder()
    try:
        _open(folder, made)
        with _locked(folder):
            _recover_checkpoint(folder / "checkpoints")
            yield opened
    except BaseException as error:
        is_unused = not opened.is_used and not (folder / "checkpoints").exists()
        if folder in made and isinstance(error, UsageError) and is_unused:
            shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(made)
        raise


def require_nothing_in(folder: Path, of_run: str = "--resume") -> None:
    """Refuse to begin a run or a population in a folder that holds a run, a population or a sweep. `of_run` continues a
    run."""
    for name, (kind, command) in HELD.items():
        if (folder / name).exists():
            how = of_run if kind == "run" else command
            raise UsageError(f"{folder} holds a {kind} already; {how} continues it, another --run-dir starts a new one")


def check_run_folder(folder: Path) -> None:
    """Raise the errors that `open_run_folder` would raise, and leave everything unchanged."""
    made: list[Path] = []
    try:
        _open(folder, made)
    finally:
        _remove_empty(made)


def set_reports_aside(folder: Path) -> None:
    """A run has ended in this folder before its first checkpoint: move its reports to `ended_1`, or the next free
    number. The new run has curves of its own."""
    found = [path for path in (folder / name for name in REPORTS) if path.exists()]
    if not found or not (folder / "config.json").exists():  # without, they are not those of a run
        return
    aside = next(path for path in (folder / f"ended_{number}" for number in count(1)) if not path.exists())
    aside.mkdir()
    for path in found:
        os.replace(path, aside / path.name)
    log.warning("%s has the reports of a run that ended before its first checkpoint", aside)


def remove_leftovers(folder: Path) -> None:
    """Delete partial files of killed runs, but not those of `report` and `export`, which may be running."""
    for path in folder.glob(".config.*"):
        if UNFINISHED_CONFIG.fullmatch(path.name):  # others are the user's
            path.unlink(missing_ok=True)
    remove_temporaries(folder / "checkpoints")
    for replay in folder.glob("replay/rank_*"):
        remove_temporaries(replay)


def _open(folder: Path, made: list[Path]) -> None:
    """Create the folder and its parents, and try to write. New folders are added to `made`, outermost first."""
    try:
        missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
        for path in reversed(missing):
            with contextlib.suppress(FileExistsError):  # another run has just made the same parent
                path.mkdir()
                made.append(path)
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        _try_to_write(folder)
    except OSError as error:
        raise _refusal(folder, error) from error


def _try_to_write(folder: Path) -> None:
    first, second = (folder / f".{name}.{os.getpid()}" for name in ("trial", "renamed"))
    try:
        first.write_bytes(bytes(TRIAL_BYTES))
        flush(first)
        os.replace(first, second)
    finally:
        for path in (first, second):
            path.unlink(missing_ok=True)


def _refusal(folder: Path, error: OSError) -> PacelineError:
    refused = cannot_write(folder, error, TRIAL_BYTES)
    if isinstance(refused, DiskFull):
        return refused
    file = next((path for path in (folder, *folder.parents) if os.path.lexists(path) and not path.is_dir()), None)
    if file is not None:
        return UsageError(f"the run folder {folder} cannot be made: {file} is a file; allowed: a folder, or a new name")
    return UsageError(f"the run folder {refused}; allowed: a --run-dir that this user can write to")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder: two runs would delete each other's files. The kernel unlocks it when this process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            allowed = "another --run-dir, or wait until that run ends"
            raise UsageError(f"the run folder {folder} is in use by another run; allowed: {allowed}") from None
        except OSError:  # some network file systems have no locks
            log.debug("%s cannot be locked", folder)
        yield
    finally:
        os.close(descriptor)


def _recover_checkpoint(folder: Path) -> None:
    """Restore a checkpoint that `CheckpointFolder.save` had moved away to replace it when it was killed."""
    for hidden in folder.glob(".replaced_step_*"):
        final = folder / hidden.name.removeprefix(".replaced_").partition(".")[0]
        if not final.exists():
            os.replace(hidden, final)


def _remove_empty(folders: list[Path]) -> None:
    for path in reversed(folders):
        with contextlib.suppress(OSError):  # the folder is not empty
            path.rmdir()
