"""The guardian: a tiny process that cleans up after a pool's workers, even if the pool's process is killed.

It cleans up what outlives a killed process:

- Processes. The pool tells the guardian over a pipe which process groups are its own. If the pipe closes without a
  farewell, the guardian kills these groups and every process with the pool's mark in its environment, which includes
  simulators that moved into sessions of their own.
- Named shared memory in /dev/shm (ViZDoom makes it). The guardian checks regularly which of our processes map new
  files. It deletes a file once the workers that mapped it have ended and no living process maps it. Files older than
  the pool stay.

It runs as a script without site-packages, so it starts in milliseconds. It imports nothing of this package.

Lines from the pool: `old FILE`, `start GROUP MARK`, `mapped MARK FILE`, `end GROUP MARK`, `farewell`. FILE is
NAME:INODE.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterable, Iterator

MARK_VARIABLE = "PACELINE_POOL_MARK"
FAREWELL = "farewell"
SHARED_FOLDER = "/dev/shm"
CHECK_SECONDS = 1.0
CHECK_SHARE = 0.02
"""Checks take at most this share of a core."""
MAX_CHECKS = 5
"""A file that none of our processes maps after this many checks is not ours."""


def kill_group(pgid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)


def marked(mark: str) -> dict[int, str]:
    """Processes, and their marks, whose environment has `mark`, or `mark` and a dotted suffix. Linux only."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
            for variable in file.read().split(b"\0"):
                if variable == wanted or variable.startswith(wanted + b"."):
                    found[pid] = variable.partition(b"=")[2].decode()
    return found


def kill_marked(mark: str) -> list[int]:
    """Kill the `marked` processes. Returns their ids."""
    found = list(marked(mark))
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return found


def shared_files() -> set[str]:
    """The files in /dev/shm, as NAME:INODE. A name alone may come back with another file."""
    with contextlib.suppress(OSError), os.scandir(SHARED_FOLDER) as entries:
        return {f"{entry.name}:{entry.inode()}" for entry in entries if not entry.is_dir(follow_symlinks=False)}
    return set()


def mapped_files(pid: int) -> set[str]:
    """The files in /dev/shm that a process maps, as NAME:INODE. Empty if its maps cannot be read."""
    files, folder = set(), f"{SHARED_FOLDER}/".encode()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", "rb") as maps:
        for line in maps:
            start = line.find(folder)
            if start >= 0:
                name = os.fsdecode(line[start + len(folder) :].rstrip(b"\n"))
                files.add(f"{name}:{int(line.split(None, 5)[4])}")
    return files


def _pids() -> Iterator[int]:
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                yield int(entry)


class SharedMemory:
    """The files in /dev/shm that our processes map, and the workers that they belong to."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self.old: set[str] = set()
        """Files that existed before the pool or belong to others."""
        self._doubtful: dict[str, int] = {}  # new files without a known owner, and how often they were checked
        self._workers_of: dict[str, set[str]] = {}  # marks of the workers that mapped a file of ours

    def look(self) -> None:
        """Find the owners of new files."""
        present = shared_files()
        self._workers_of = {file: workers for file, workers in self._workers_of.items() if file in present}
        new = present - self.old - self._workers_of.keys()
        if not new:
            self._doubtful = {}
            return
        for pid, mark in marked(self._mark).items():
            self.note(mark, new & mapped_files(pid))
        self._doubtful = {file: self._doubtful.get(file, 0) + 1 for file in new - self._workers_of.keys()}
        self.old.update(file for file, checks in self._doubtful.items() if checks >= MAX_CHECKS)

    def note(self, mark: str, files: Iterable[str]) -> None:
        """The worker with `mark` has mapped `files`."""
        for file in files:
            if file not in self.old:
                self._workers_of.setdefault(file, set()).add(mark)

    def remove(self, ended: set[str] | None = None, killed: Iterable[int] = ()) -> None:
        """Delete files of the workers `ended` (None: of all workers) that no living process maps.

        Processes in `killed` do not count as living, although they may not be gone yet.
        """
        files = {file for file, workers in self._workers_of.items() if ended is None or workers <= ended} - self.old
        if not files:
            return
        for pid in set(_pids()).difference(killed):
            files -= mapped_files(pid)
        for file in files & shared_files():
            with contextlib.suppress(OSError):
                os.unlink(f"{SHARED_FOLDER}/{file.rpartition(':')[0]}")


class Guardian:
    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._memory = SharedMemory(mark)
        self._groups: set[int] = set()
        self._ended: set[str] = set()

    def run(self, fd: int) -> None:
        """Follow the lines in `fd`, check shared memory in between, and clean up at the end."""
        pending, next_check = b"", time.monotonic() + CHECK_SECONDS
        while True:
            if (start := time.monotonic()) >= next_check:
                self._memory.look()
                now = time.monotonic()
                next_check = now + max(CHECK_SECONDS, (now - start) / CHECK_SHARE)
            if not select.select([fd], [], [], max(0.0, next_check - time.monotonic()))[0]:
                continue
            data = os.read(fd, 1 << 16)
            if not data:
                return self._kill_all()
            *lines, pending = (pending + data).split(b"\n")
            for line in map(os.fsdecode, lines):
                if line == FAREWELL:
                    return self._memory.remove()
                self._obey(*line.split(" ", 2))

    def _obey(self, word: str, subject: str, rest: str = "") -> None:
        if word == "old":
            self._memory.old.add(" ".join(filter(None, (subject, rest))))
        elif word == "start":
            self._groups.add(int(subject))
        elif word == "mapped":
            self._memory.note(subject, [rest])
        elif word == "end":
            self._groups.discard(int(subject))
            self._ended.add(rest)
            self._memory.remove(self._ended)

    def _kill_all(self) -> None:
        self._memory.look()  # the pool's process is gone, but living workers still show what they map
        for group in self._groups:
            kill_group(group)
        self._memory.remove(killed=kill_marked(self._mark))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Guardian(sys.argv[1]).run(sys.stdin.fileno())
