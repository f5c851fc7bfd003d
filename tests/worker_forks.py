"""Worker processes of pools, forked from one that has imported Gymnasium. A new interpreter takes half a second.

A module of tests asks for them by `pytestmark = pytest.mark.usefixtures("forked_workers")`. A test takes the workers
that users have where the process itself is tested: its start, its signals or its end.

A forked worker has what `Popen` gives to a new one: a parent, a session, open files, an environment, a core.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.pool.guardian import MARK_VARIABLE

IMPORTED = ["gymnasium", "cloudpickle", "hypothesis", "pytest", "paceline.pool.worker", "tests.pool.faulty"]
ROOM = "?" * 60
"""Where the pool's mark stands in the environment that the kernel shows of a process."""
_LENGTH = struct.Struct("=q")


class ForkedWorker(subprocess.Popen):
    """A worker that the process at the other end of `server` forks."""

    server: socket.socket

    def _execute_child(
        self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any, env: Any, *rest: Any
    ) -> None:
        assert args[1:3] == ["-m", "paceline.pool.worker"] and preexec_fn is None and close_fds and cwd is None
        job = {
            "arguments": args[2:],
            "environment": dict(env),
            "folder": os.getcwd(),
            "cores": os.sched_getaffinity(0),
            "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, []),
            "fds": list(pass_fds),
        }
        data = pickle.dumps(job)
        socket.send_fds(self.server, [_LENGTH.pack(len(data))], [1, 2, *pass_fds])
        self.server.sendall(data)
        self.pid = _LENGTH.unpack(_receive(self.server, _LENGTH.size))[0]
        self._child_created = True


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data


def serve(connection: socket.socket) -> None:
    """Fork a worker for every job, until the connection ends."""
    python = ctypes.PyDLL(None)
    clone = python.syscall
    clone.restype = ctypes.c_long
    number = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
    clone_parent = 0x00008000
    while True:
        head, received, *_ = socket.recv_fds(connection, _LENGTH.size, 16)
        if not head:
            return
        job = pickle.loads(_receive(connection, _LENGTH.unpack(head)[0]))
        python.PyOS_BeforeFork()
        # Not os.fork: the worker is to be a child of the pool's process, which waits for it.
        pid = clone(*map(ctypes.c_long, (number, clone_parent | signal.SIGCHLD, 0, 0, 0, 0)))
        if pid == 0:
            python.PyOS_AfterFork_Child()
            try:
                _work(job, received, connection)
            finally:
                os._exit(1)
        python.PyOS_AfterFork_Parent()
        for fd in received:
            os.close(fd)
        connection.sendall(_LENGTH.pack(pid))


def _work(job: dict[str, Any], received: list[int], connection: socket.socket) -> None:
    """Become the worker."""
    connection.close()
    os.setsid()
    wanted = [1, 2, *job["fds"]]
    high = max([*wanted, *received]) + 1
    for index, fd in enumerate(received):  # first out of the way of each other
        os.dup2(fd, high + index)
        os.close(fd)
    for index, fd in enumerate(wanted):
        os.dup2(high + index, fd)
        os.close(high + index)
    signal.pthread_sigmask(signal.SIG_SETMASK, job["blocked"])
    os.sched_setaffinity(0, job["cores"])
    os.chdir(job["folder"])
    os.environ.clear()
    os.environ.update(job["environment"])
    _show(job["environment"].get(MARK_VARIABLE, ""))
    path = job["environment"]["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [job["folder"], *path]
    sys.argv = job["arguments"]
    del sys.modules["paceline.pool.worker"]  # a program is no module
    try:
        runpy.run_module("paceline.pool.worker", run_name="__main__", alter_sys=True)
    except BaseException:
        sys.excepthook(*sys.exc_info())


def _show(mark: str) -> None:
    """Let /proc show the mark, as it does of a process that was started with it: others look for it there."""
    with open("/proc/self/stat", "rb") as file:
        start, end = map(int, file.read().rpartition(b")")[2].split()[47:49])
    environment = ctypes.string_at(start, end - start)
    place = environment.index(f"{MARK_VARIABLE}={ROOM}".encode()) + len(MARK_VARIABLE) + 1
    ctypes.memmove(start + place, mark.encode().ljust(len(ROOM), b"\0"), len(ROOM))


@pytest.fixture(scope="session")
def _server() -> Iterator[socket.socket]:
    ours, theirs = socket.socketpair()
    threads = dict.fromkeys(
        ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"), "1"
    )
    environment = os.environ | threads | {MARK_VARIABLE: ROOM, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "tests.worker_forks", str(theirs.fileno())]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
    theirs.close()
    with ours:
        yield ours
    process.wait()


@pytest.fixture
def forked_workers(_server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers of all pools are forked."""
    start = type("Start", (ForkedWorker,), {"server": _server})
    names = {name: getattr(subprocess, name) for name in ("DEVNULL", "TimeoutExpired")}
    monkeypatch.setattr("paceline.pool.worker_process.subprocess", type("Subprocess", (), names | {"Popen": start}))


if __name__ == "__main__":
    for module in IMPORTED:
        __import__(module)
    assert "torch" not in sys.modules, "no worker imports it"
    serve(socket.socket(fileno=int(sys.argv[1])))
