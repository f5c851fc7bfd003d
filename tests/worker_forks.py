"""Worker processes of pools, forked from the process of the tests. A new interpreter takes half a second.

A module of tests asks for them by `pytestmark = pytest.mark.usefixtures("forked_workers")`. Where the process itself is
tested (its start, its signals, its end), a test takes the workers that users have.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.pool import worker


class ForkedWorker(subprocess.Popen):
    """A worker as `Popen` starts it, but for the new interpreter."""

    def _execute_child(
        self,
        args: list[str],
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        *_: Any,
    ) -> None:
        assert args[1:3] == ["-m", "paceline.pool.worker"]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _work(args[2:], {0, 1, 2, *pass_fds}, env)
            finally:
                os._exit(1)
        self._child_created = True


def _work(arguments: list[str], fds: set[int], environment: dict[str, str]) -> None:
    """Become the worker. It has no other open files, because pipes end only when all processes have closed them."""
    os.setsid()
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
    os.environ.update(environment)
    sys.argv = arguments
    try:
        worker.main()
    except BaseException:
        sys.excepthook(*sys.exc_info())


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of all pools are forked."""
    names = {"Popen": ForkedWorker, "DEVNULL": subprocess.DEVNULL, "TimeoutExpired": subprocess.TimeoutExpired}
    monkeypatch.setattr("paceline.pool.worker_process.subprocess", SimpleNamespace(**names))
