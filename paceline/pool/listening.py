"""Waiting for messages, deaths of workers, room in pipes and wake-ups, in one `poll`."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading

from paceline.pool.channel import Message, ResultReader
from paceline.pool.worker_process import WorkerProcess


class Listener:
    """Waits for all events of a process pool. Also sends the rest of commands that did not fit into a pipe."""

    def __init__(self, results_fd: int) -> None:
        self._results_fd = results_fd
        self._results = ResultReader(results_fd)
        self._waker = Waker()
        self.wake, self.close = self._waker.wake, self._waker.close
        self._poll = select.poll()
        self._poll.register(results_fd, select.POLLIN)
        self._poll.register(self._waker.fd, select.POLLIN)
        self._by_pidfd: dict[int, WorkerProcess] = {}
        self._backlogged: dict[int, WorkerProcess] = {}

    def add(self, worker: WorkerProcess) -> None:
        if worker.pidfd is not None:
            self._poll.register(worker.pidfd, select.POLLIN)
            self._by_pidfd[worker.pidfd] = worker

    def remove(self, worker: WorkerProcess) -> None:
        """Forget a worker, including its incomplete message."""
        if worker.pidfd is not None:
            self._poll.unregister(worker.pidfd)
            del self._by_pidfd[worker.pidfd]
        self._unwatch(worker.commands.fd)
        self._results.forget(worker.sender)

    def watch_room(self, worker: WorkerProcess) -> None:
        """Send the rest of the worker's commands as soon as its pipe has room."""
        if worker.commands.fd not in self._backlogged:
            self._backlogged[worker.commands.fd] = worker
            self._poll.register(worker.commands.fd, select.POLLOUT)

    def wait(self, seconds: float) -> tuple[list[Message], list[WorkerProcess]]:
        """Wait for any event. Returns new messages and workers that died."""
        messages: list[Message] = []
        died: list[WorkerProcess] = []
        for fd, _ in self._poll.poll(math.ceil(seconds * 1000)):
            if fd == self._results_fd:
                messages = self._results.read()
            elif fd == self._waker.fd:
                self._waker.clear()
            elif fd in self._by_pidfd:
                died.append(self._by_pidfd[fd])
            elif self._backlogged[fd].commands.flush():
                self._unwatch(fd)
        return messages, died

    def read(self) -> list[Message]:
        """New messages, without waiting."""
        return self._results.read()

    def _unwatch(self, fd: int) -> None:
        if self._backlogged.pop(fd, None) is not None:
            self._poll.unregister(fd)


class Waker:
    """A pipe to oneself, whose end `fd` is polled. Ends a `poll` from another thread or a signal handler."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may interrupt `wake` or `close` in the same thread and call `wake`.
        self._lock, self._closed = threading.RLock(), False
        self.fd, self._write_fd = os.pipe()
        for fd in (self.fd, self._write_fd):
            os.set_blocking(fd, False)

    def wake(self) -> None:
        """End the current or the next wait. Does nothing after `close`."""
        with self._lock, contextlib.suppress(BlockingIOError):  # a full pipe already wakes
            if not self._closed:
                os.write(self._write_fd, b"!")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 1 << 16)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.fd)
                os.close(self._write_fd)
