"""The guardian: a tiny process that ends a pool's workers, and all that they started, once the pool's process is gone.

A worker that is stuck in a simulator's C code cannot notice that its parent was killed, and a worker that is killed
takes nothing with it. So the pool tells the guardian, over a pipe, which process groups are its own; when the pipe
closes without a word of farewell, the guardian kills those groups and every process that carries the pool's mark in
its environment (simulators that moved into sessions of their own included).

Run as a script, isolated from site-packages: it starts in milliseconds and imports nothing of ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

MARK_VARIABLE = "PACELINE_POOL_MARK"
FAREWELL = "farewell"


def kill_group(pgid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pgid, signal.SIGKILL)


def kill_marked(mark: str) -> None:
    """Kill every process whose environment carries `mark` or, a dot after it, a mark made from it. Linux only."""
    wanted = f"{MARK_VARIABLE}={mark}".encode()
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                with open(f"/proc/{entry}/environ", "rb") as file:
                    variables = file.read().split(b"\0")
                if any(v == wanted or v.startswith(wanted + b".") for v in variables):
                    os.kill(int(entry), signal.SIGKILL)


def main() -> None:
    mark = sys.argv[1]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin:
        word = line.strip()
        if word == FAREWELL:
            return
        if word.startswith("-"):
            groups.discard(int(word[1:]))
        else:
            groups.add(int(word))
    for group in groups:
        kill_group(group)
    kill_marked(mark)


if __name__ == "__main__":
    main()
