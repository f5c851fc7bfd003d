"""All worker processes of one pool, and the guardian process that cleans up after them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable

from paceline.pool import guardian, memory
from paceline.pool.channel import Command
from paceline.pool.listening import Listener
from paceline.pool.worker_process import WorkerProcess

_CLOSE_SECONDS = 3.0


class GuardianProcess:
    """The guardian, which outlives the pool's process if necessary. A guardian that dies is replaced."""

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

    def check(self, workers: Iterable[WorkerProcess]) -> None:
        """Start another guardian for `workers` if this one has died."""
        if self._process.poll() is None:
            return
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process = self._launch()
        self.tell(*(f"start {worker.pid} {worker.mark}" for worker in workers if not worker.ended))
        self.note_memory(self._mark)

    def note_memory(self, mark: str) -> None:
        """Report the new shared memory that processes with `mark` map. Called before they are killed."""
        new = guardian.shared_files() - self._old
        if new:
            owners = guardian.marked(mark).items()
            files = {(own_mark, file) for pid, own_mark in owners for file in guardian.mapped_files(pid) & new}
            self.tell(*(f"mapped {own_mark} {file}" for own_mark, file in files))

    def dismiss(self) -> None:
        self.tell(guardian.FAREWELL)
        try:
            self._process.communicate(timeout=_CLOSE_SECONDS)
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


class WorkerProcesses:
    """The worker processes of one pool, the memory they share, their messages, and the guardian."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        self.guard = GuardianProcess(self._mark)
        self.results_fd, self._results_write_fd = os.pipe()
        os.set_blocking(self.results_fd, False)
        self.memory_fd = memory.create("pool")
        self.listener = Listener(self.results_fd)
        self.workers: list[WorkerProcess] = []
        self.number_of: dict[int, int] = {}
        """Numbers of living workers, by sender."""
        self._started = 0
        self._closed = False

    def start(self, number: int) -> WorkerProcess:
        """Start a process for worker `number`, in place of an earlier one with this number."""
        worker = WorkerProcess(
            number=number,
            sender=self._started,
            mark=self._mark,
            memory_fd=self.memory_fd,
            results_fd=self._results_write_fd,
        )
        self._started += 1
        self.number_of[worker.sender] = number
        self.guard.tell(f"start {worker.pid} {worker.mark}")
        self.listener.add(worker)
        self.workers[number : number + 1] = [worker]
        return worker

    def remove(self, worker: WorkerProcess) -> str:
        """End one worker and all processes that it started. Returns how it ended."""
        self.listener.remove(worker)
        del self.number_of[worker.sender]
        self.guard.note_memory(worker.mark)
        ending = worker.kill()
        guardian.kill_marked(worker.mark)
        worker.free()
        self.guard.tell(f"end {worker.pid} {worker.mark}")
        return ending

    def command(self, number: int, kind: int, payload: bytes = b"") -> None:
        worker = self.workers[number]
        if not worker.command(kind, payload):
            self.listener.watch_room(worker)

    def close(self) -> None:
        """Ask every worker to end, kill those that do not, and free what they shared."""
        if self._closed:
            return
        self._closed = True
        living = [worker for worker in self.workers if not worker.ended]
        for worker in living:
            worker.command(Command.CLOSE)
        deadline = time.monotonic() + _CLOSE_SECONDS
        for worker in living:
            worker.wait(max(0.0, deadline - time.monotonic()))
        self.guard.check(living)
        if not all(worker.exited() for worker in living):
            self.guard.note_memory(self._mark)
        for worker in living:
            guardian.kill_group(worker.pid)
        for worker in living:
            worker.kill()
        guardian.kill_marked(self._mark)
        for worker in living:
            worker.free()
        self.guard.dismiss()
        self.listener.close()
        for fd in (self.results_fd, self._results_write_fd, self.memory_fd):
            os.close(fd)
