"""Writes files as a whole or not at all, and explains why a file cannot be written."""

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
"""Matches the names that `temporary_name` gives."""


class DiskFull(PacelineError):
    """A file cannot be written because the disk or the user's quota is full."""


def temporary_name(path: Path) -> Path:
    """Where `path` is written until it is complete: a hidden file in the same folder, with the same suffix."""
    return path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A context that gives a temporary path to write to. At its end the file is flushed to disk and renamed to `path`.

    After any failure the old file is unchanged.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
        with contextlib.suppress(OSError):  # some file systems cannot flush a folder, which holds the new name
            flush(path.parent)
    except OSError as error:
        if error.errno not in REASONS:
            raise  # the error may come from other work inside the context
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Write `text` to the file, as a whole or not at all."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(text)
    except OSError as error:
        raise cannot_write(path, error) from error


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_temporaries(folder: Path) -> None:
    """Delete the temporary files of killed writers. No process may be writing to `folder`."""
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
    """The error that says why `path` cannot be written. `needed` is the size of the whole file in bytes, if known."""
    reason = REASONS.get(error.errno or 0, error.strerror or str(error))
    if error.errno not in FULL:
        return PacelineError(f"{path} cannot be written: {reason}")
    needs = "" if needed is None else f"it needs {_size(needed)}, and "
    try:
        free = f"{_size(shutil.disk_usage(path.parent).free)} are free"
    except OSError:
        free = "the free space is unknown"
    return DiskFull(f"{path} cannot be written: {reason} ({needs}{free})")


def check_room(path: Path, needed: int) -> None:
    """Raise `DiskFull` if `needed` bytes do not fit on the disk of `path`. Its folder must exist."""
    if shutil.disk_usage(path.parent).free < needed:
        raise cannot_write(path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), needed)


def os_error_of(error: BaseException) -> OSError | None:
    """The operating system's error behind a library's error: a cause of it, or in its text (Rust's "os error 28")."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, OSError):
            return seen
        found = re.search(r"\(os error (\d+)\)", str(seen))
        if found is not None:
            return OSError(int(found[1]), os.strerror(int(found[1])))
        seen = seen.__cause__ or seen.__context__
    return None


def _size(count: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 2**10:.0f} KiB"
