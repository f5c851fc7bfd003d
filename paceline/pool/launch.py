"""Worker processes: started clean, told apart, and ended with everything that they started.

Workers are fresh interpreters rather than forks: no lock, handler, thread or CUDA context of the training process
comes along, the user's main module is not run again, and PyTorch is not imported. Each is the leader of its own
session, so a Ctrl-C in the terminal reaches the training process alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid

from paceline.pool import guardian, memory
from paceline.pool.channel import Command, send_command

_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
_GOODBYE_SECONDS = 3.0
_DUMP_SECONDS = 2.0


class WorkerProcess:
    """One running worker. `sender` is unique among all workers that the pool ever starts."""

    def __init__(self, *, number: int, sender: int, mark: str, memory_fd: int, results_fd: int) -> None:
        self.number, self.sender = number, sender
        self.ended = False
        self._mark = f"{mark}.{sender}"
        self._report_fd = memory.create("report")
        commands_fd, self._commands_fd = os.pipe()
        fds = [commands_fd, results_fd, memory_fd, self._report_fd]
        environment = os.environ | {guardian.MARK_VARIABLE: self._mark}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        for variable in _ONE_THREAD:
            environment.setdefault(variable, "1")
        arguments = [sys.executable, "-m", "paceline.pool.worker", str(number), str(sender), *map(str, fds)]
        try:
            self._process = subprocess.Popen(
                arguments, pass_fds=fds, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            os.close(commands_fd)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    def command(self, kind: int, payload: bytes = b"") -> None:
        """Send a command; one to a worker that has died is dropped, since its death is known or about to be noticed."""
        if self.ended:
            return
        with contextlib.suppress(BrokenPipeError):
            send_command(self._commands_fd, kind, payload)

    def exited(self) -> bool:
        return self._process.poll() is not None

    def stack(self) -> str:
        """Where the worker's threads are right now, whatever they are doing."""
        start = os.fstat(self._report_fd).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _DUMP_SECONDS
        while os.fstat(self._report_fd).st_size == start and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._report(start)

    def end(self) -> str:
        """Kill the worker and all that it started, free what was kept of it, and say how it ended."""
        if self.ended:
            return "was ended before"
        self.ended = True
        died_alone = self.exited()
        guardian.kill_group(self.pid)
        code = self._process.wait()
        guardian.kill_marked(self._mark)
        for fd in (self._commands_fd, self._report_fd, self.pidfd):
            if fd is not None:
                os.close(fd)
        if not died_alone:
            return "was ended by the pool"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited by itself with code {code}"

    def crash_report(self) -> str:
        """The traceback that a crash in native code left behind, if there was one."""
        return self._report(0)

    def wait(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.exited()

    def _report(self, start: int) -> str:
        size = os.fstat(self._report_fd).st_size - start
        return os.pread(self._report_fd, size, start).decode(errors="replace") if size > 0 else ""


class Crew:
    """All worker processes of one pool, the memory they share and the guardian that outlives us if need be."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self._guardian = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, self._mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        self.results_fd, self._results_write_fd = os.pipe()
        os.set_blocking(self.results_fd, False)
        self.memory_fd = memory.create("pool")
        self.workers: list[WorkerProcess] = []
        self._started = 0
        self._closed = False

    def start(self, number: int) -> WorkerProcess:
        """A new process for worker `number`, in the place of the one that had this number, if any."""
        worker = WorkerProcess(
            number=number,
            sender=self._started,
            mark=self._mark,
            memory_fd=self.memory_fd,
            results_fd=self._results_write_fd,
        )
        self._started += 1
        self._tell_guardian(str(worker.pid))
        if number == len(self.workers):
            self.workers.append(worker)
        else:
            self.workers[number] = worker
        return worker

    def remove(self, worker: WorkerProcess) -> str:
        """End one worker: how it ended, in words."""
        ending = worker.end()
        self._tell_guardian(f"-{worker.pid}")
        return ending

    def close(self) -> None:
        """Ask every worker to end, make sure that it did, and free what they shared."""
        if self._closed:
            return
        self._closed = True
        for worker in self.workers:
            worker.command(Command.CLOSE)
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for worker in self.workers:
            if not worker.ended:
                worker.wait(max(0.0, deadline - time.monotonic()))
            worker.end()
        self._tell_guardian(guardian.FAREWELL)
        with contextlib.suppress(OSError):
            self._guardian.communicate(timeout=_GOODBYE_SECONDS)
        for fd in (self.results_fd, self._results_write_fd, self.memory_fd):
            os.close(fd)

    def _tell_guardian(self, line: str) -> None:
        assert self._guardian.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guardian.stdin.write(line + "\n")
            self._guardian.stdin.flush()
