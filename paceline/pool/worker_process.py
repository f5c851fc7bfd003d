"""One worker process: started clean, and ended with its process group.

Workers are fresh interpreters, not forks. They inherit no lock, signal handler, thread or CUDA context, do not run the
user's main module again, and do not import PyTorch. Each leads its own session, so Ctrl-C in the terminal reaches only
the training process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil

from paceline.errors import UsageError
from paceline.pool import guardian, memory
from paceline.pool.channel import CommandWriter
from paceline.pool.worker import IGNORED_SIGNALS

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
_STACK_SECONDS = 2.0
FILES_PER_WORKER = 3
"""Open files of the pool for each worker: its commands, its crash report and its process."""
SPARE_FILES = 64
"""Open files reserved for the pool itself and for the rest of the program."""


class WorkerProcess:
    """One running worker. `sender` is unique among all workers that the pool ever starts."""

    def __init__(self, *, number: int, sender: int, mark: str, memory_fd: int, results_fd: int) -> None:
        self.number, self.sender = number, sender
        self.mark = f"{mark}.{sender}"
        self.ended = False
        self._report_fd = memory.create("report")
        commands_fd, write_fd = os.pipe()
        self.commands = CommandWriter(write_fd)
        fds = [commands_fd, results_fd, memory_fd, self._report_fd]
        environment = os.environ | {guardian.MARK_VARIABLE: self.mark}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        for variable in _ONE_THREAD:
            environment.setdefault(variable, "1")
        arguments = [sys.executable, "-m", "paceline.pool.worker", str(number), str(sender), *map(str, fds)]
        # The worker starts with these signals blocked, because an early one would kill it before it has handlers.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED_SIGNALS)
        try:
            self._process = subprocess.Popen(
                arguments, pass_fds=fds, env=environment, stdin=subprocess.DEVNULL, start_new_session=True
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os.close(commands_fd)
        self.pid = self._process.pid
        self.pidfd = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else None

    def command(self, kind: int, payload: bytes = b"") -> bool:
        """Send a command. Returns False if the pipe is full and `commands.flush` has to send the rest."""
        return self.ended or self.commands.send(kind, payload)

    def exited(self) -> bool:
        return self._process.poll() is not None

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP, or Ctrl-Z)."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def stack(self) -> str:
        """The current stack of all threads of the worker."""
        start = os.fstat(self._report_fd).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_SECONDS
        while os.fstat(self._report_fd).st_size == start and time.monotonic() < deadline:
            time.sleep(0.01)
        return self.report(start)

    def report(self, start: int = 0) -> str:
        """The tracebacks that `stack`, or a crash in native code, left behind."""
        size = os.fstat(self._report_fd).st_size - start
        return os.pread(self._report_fd, size, start).decode(errors="replace") if size > 0 else ""

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> str:
        """Kill the worker and its process group, wait for its end, and say how it ended."""
        died_alone = self.exited()
        guardian.kill_group(self.pid)
        code = self._process.wait()
        if not died_alone:
            return "was ended by the pool"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited by itself with code {code}"

    def free(self) -> None:
        """Close the files of a worker that has ended."""
        self.ended = True
        for fd in (self.commands.fd, self._report_fd, self.pidfd):
            if fd is not None:
                os.close(fd)


def require_open_files(num_workers: int) -> None:
    """Raise the soft limit of open files as far as `num_workers` need. An error if the hard limit forbids it."""
    if os.name != "posix":
        return
    import resource

    taken = psutil.Process().num_fds() + SPARE_FILES
    needed = taken + FILES_PER_WORKER * num_workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return
    most = max(0, (hard - taken) // FILES_PER_WORKER)
    raise UsageError(
        f"{num_workers} workers need {needed} open files, and this process may have {hard} (ulimit -n); "
        f"allowed: at most {most} pool.workers, or a higher limit"
    )
