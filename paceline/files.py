"""Files that are replaced as a whole, and failures to write them in words."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from paceline.errors import PacelineError

FULL = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the disk quota is used up"}
REASONS = {
    **FULL,
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
    errno.EROFS: "the file system is read-only",
    errno.EFBIG: "it would be larger than files may be",
}
TEMPORARY = re.compile(r"\..+\.\d+(\.\w+)?")
"""Names that `temporary_name` gives."""


class DiskFull(PacelineError):
    """A file cannot be written because the disk, or the user's share of it, is full."""


def temporary_name(path: Path) -> Path:
    """Where `path` is written until it is whole: beside it, hidden, with the same ending."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write a file under the name that this gives: at the end it is on disk, and only then under the name `path`.

    If anything fails, the file that was there before stays as it is.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
        flush_folder(path.parent)
    except OSError as error:
        if error.errno not in REASONS:
            raise  # it may be about something else that was done there
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Let `text` be what the file holds."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(text)
    except OSError as error:
        raise cannot_write(path, error) from error


def flush(path: Path) -> None:
    """A file is on disk when this returns."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def flush_folder(folder: Path) -> None:
    """New names in a folder are on disk when this returns, where its file system can do that."""
    with contextlib.suppress(OSError):
        flush(folder)


def remove_temporaries(folder: Path) -> None:
    """Delete what writers that were killed have left in `folder`. Nobody may be writing there now."""
    if not folder.is_dir():
        return
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name) is None:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def cannot_write(path: Path, error: OSError, needed: int | None = None) -> PacelineError:
    """The error that says why `path` cannot be written; `needed` bytes are what all of it takes, if that is known."""
    reason = REASONS.get(error.errno or 0, error.strerror or str(error))
    if error.errno not in FULL:
        return PacelineError(f"{path} cannot be written: {reason}")
    return DiskFull(f"{path} cannot be written: {reason} ({_room(path, needed)})")


def check_room(path: Path, needed: int) -> None:
    """Raise `DiskFull` if `path`, in a folder that exists, does not fit on its disk."""
    if shutil.disk_usage(path.parent).free < needed:
        raise cannot_write(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), needed)


def os_error_of(error: BaseException) -> OSError | None:
    """The operating system's error behind one of a library: in its history, or in its text (Rust's "os error 28")."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        found = re.search(r"\(os error (\d+)\)", str(seen))
        if found is not None:
            return OSError(int(found[1]), os.strerror(int(found[1])))
        seen = seen.__cause__ or seen.__context__
    return None


def _room(path: Path, needed: int | None) -> str:
    needs = "" if needed is None else f"it needs {_size(needed)}, and "
    try:
        free = shutil.disk_usage(path.parent).free
    except OSError:
        return f"{needs}how much is free is not known"
    return f"{needs}{_size(free)} are free"


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 2**10:.0f} KiB"
