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
from collections.abc import Iterable, Mapping

import psutil

from paceline.pool import guardian, memory
from paceline.pool.channel import Command, CommandWriter
from paceline.pool.worker import LEFT_TO_THE_POOL

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
        # The worker begins with these signals blocked, until it has handlers: one that comes early must not kill it.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_THE_POOL)
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
        """Send a command. Returns False if the pipe is full: then `flush` has to send the rest.

        A command to a worker that has died is dropped, since its death is known or about to be noticed.
        """
        if self.ended:
            return True
        try:
            return self.commands.send(kind, payload)
        except BrokenPipeError:
            return True

    def flush(self) -> bool:
        """Send what was left of commands. Returns whether nothing is left."""
        try:
            return self.commands.flush()
        except BrokenPipeError:
            return True

    def exited(self) -> bool:
        return self._process.poll() is not None

    def is_stopped(self) -> bool:
        """Whether a signal has stopped it (SIGSTOP, or Ctrl-Z)."""
        with contextlib.suppress(psutil.Error):
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        return False

    def stack(self) -> str:
        """Where the worker's threads are right now, whatever they are doing."""
        start = os.fstat(self._report_fd).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
        deadline = time.monotonic() + _DUMP_SECONDS
        while os.fstat(self._report_fd).st_size == start and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._report(start)

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
        """Free what was kept of a worker that has ended."""
        self.ended = True
        for fd in (self.commands.fd, self._report_fd, self.pidfd):
            if fd is not None:
                os.close(fd)

    def crash_report(self) -> str:
        """The traceback that a crash in native code left behind, if there was one."""
        return self._report(0)

    def wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _report(self, start: int) -> str:
        size = os.fstat(self._report_fd).st_size - start
        return os.pread(self._report_fd, size, start).decode(errors="replace") if size > 0 else ""


class Guard:
    """The guardian process, which outlives us if need be, and a new one in its place should it die first."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._old = guardian.shared_files()
        self._process = self._launch()

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, *lines: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            self._process.stdin.write("".join(f"{line}\n" for line in lines))
            self._process.stdin.flush()

    def watch(self, workers: Iterable[WorkerProcess]) -> None:
        """Start another guardian for `workers` if this one has died."""
        if self._process.poll() is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process = self._launch()
        self.tell(*(f"start {worker.pid} {worker.mark}" for worker in workers if not worker.ended))
        self.note_marked(self._mark)

    def note_made(self, worker: WorkerProcess) -> None:
        """The worker has made its simulators: tell the guardian what shared memory it maps for them."""
        self._note({worker.pid: worker.mark})

    def note_marked(self, mark: str) -> None:
        """Tell the guardian what shared memory all processes with `mark` map now; before they are killed."""
        if not guardian.shared_files() <= self._old:
            self._note(guardian.marked(mark))

    def _note(self, marks: Mapping[int, str]) -> None:
        """Of processes with these marks. Nothing new in /dev/shm costs one look into that folder."""
        new = guardian.shared_files() - self._old
        if new:
            files = {(mark, file) for pid, mark in marks.items() for file in guardian.mapped_files(pid) & new}
            self.tell(*(f"mapped {mark} {file}" for mark, file in files))

    def dismiss(self) -> None:
        self.tell(guardian.FAREWELL)
        try:
            self._process.communicate(timeout=_GOODBYE_SECONDS)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()

    def _launch(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__, self._mark],
            stdin=subprocess.PIPE,
            start_new_session=True,
            text=True,
            errors="surrogateescape",
        )
        assert process.stdin is not None
        process.stdin.write("".join(f"old {file}\n" for file in self._old))
        process.stdin.flush()
        return process


class Crew:
    """All worker processes of one pool, the memory they share, and the guardian."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self.guard = Guard(self._mark)
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
        self.guard.tell(f"start {worker.pid} {worker.mark}")
        if number == len(self.workers):
            self.workers.append(worker)
        else:
            self.workers[number] = worker
        return worker

    def remove(self, worker: WorkerProcess) -> str:
        """End one worker and all that it started: how it ended, in words."""
        self.guard.note_marked(worker.mark)
        ending = worker.kill()
        guardian.kill_marked(worker.mark)
        worker.free()
        self.guard.tell(f"end {worker.pid} {worker.mark}")
        return ending

    def close(self) -> None:
        """Ask every worker to end, make sure that it did, and free what they shared."""
        if self._closed:
            return
        self._closed = True
        living = [worker for worker in self.workers if not worker.ended]
        for worker in living:
            worker.command(Command.CLOSE)
        deadline = time.monotonic() + _GOODBYE_SECONDS
        for worker in living:
            worker.wait(max(0.0, deadline - time.monotonic()))
        self.guard.watch(living)
        if not all(worker.exited() for worker in living):
            self.guard.note_marked(self._mark)
        for worker in living:
            guardian.kill_group(worker.pid)
        for worker in living:
            worker.kill()
        guardian.kill_marked(self._mark)
        for worker in living:
            worker.free()
        self.guard.dismiss()
        for fd in (self.results_fd, self._results_write_fd, self.memory_fd):
            os.close(fd)
