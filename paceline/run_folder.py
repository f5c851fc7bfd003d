"""The folder of a run, opened for writing. Problems with it are reported before anything else starts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import PacelineError, UsageError
from paceline.files import DiskFull, cannot_write, flush, remove_temporaries

log = logging.getLogger(__name__)

TRIAL_BYTES = 64 * 1024
"""A file of this size has to fit, or not even the first report would."""


@contextlib.contextmanager
def open_run_folder(folder: Path) -> Iterator[None]:
    """Make `folder`, lock it, and see that files can be written, renamed and removed in it. For the run's one writer: rank 0.

    If this call created the folder, it is deleted again after a usage error, or if it is still empty.
    """
    from paceline.checkpoint import recover  # imports PyTorch, which `check_run_folder` and the command line do without

    made: list[Path] = []
    try:
        _open(folder, made)
        with _locked(folder):
            recover(folder / "checkpoints")
            yield
    except BaseException as error:
        if folder in made and isinstance(error, UsageError) and not (folder / "checkpoints").exists():
            shutil.rmtree(folder, ignore_errors=True)
        _remove_empty(made)
        raise


def check_run_folder(folder: Path) -> None:
    """Raise what `open_run_folder` would, and leave everything as it was."""
    made: list[Path] = []
    try:
        _open(folder, made)
    finally:
        _remove_empty(made)


def _open(folder: Path, made: list[Path]) -> None:
    try:
        _make(folder, made)
        _try_out(folder)
    except OSError as error:
        raise _refusal(folder, error) from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the folder, because two runs would delete each other's files. The kernel releases the lock when this process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"the run folder {folder} is in use by another run; allowed: another --run-dir, or wait until that run ends"
            ) from None
        except OSError:  # some network file systems have no locks
            log.debug("%s cannot be locked", folder)
        yield
    finally:
        os.close(descriptor)


def _remove_empty(folders: list[Path]) -> None:
    for path in reversed(folders):
        with contextlib.suppress(OSError):  # there is something in it
            path.rmdir()


def _make(folder: Path, made: list[Path]) -> None:
    """Make the folder and its parents; those that were not there are added to `made`, outermost first."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another run has made the same parent just now
            path.mkdir()
            made.append(path)
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))


def _try_out(folder: Path) -> None:
    first, second = (folder / f".{name}.{os.getpid()}" for name in ("trial", "renamed"))
    try:
        first.write_bytes(bytes(TRIAL_BYTES))
        flush(first)
        os.replace(first, second)
    finally:
        for path in (first, second):
            path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Delete partial files of killed runs. Those of `report` and `export` stay, because these commands may be running."""
    for path in folder.glob(".config.*"):
        path.unlink(missing_ok=True)
    remove_temporaries(folder / "checkpoints")
    for replay in folder.glob("replay/rank_*"):
        remove_temporaries(replay)


def _refusal(folder: Path, error: OSError) -> PacelineError:
    refused = cannot_write(folder, error, TRIAL_BYTES)
    if isinstance(refused, DiskFull):
        return refused
    file = next((path for path in (folder, *folder.parents) if os.path.lexists(path) and not path.is_dir()), None)
    if file is not None:
        return UsageError(f"the run folder {folder} cannot be made: {file} is a file; allowed: a folder, or a new name")
    return UsageError(f"the run folder {refused}; allowed: a --run-dir that this user can write to")
