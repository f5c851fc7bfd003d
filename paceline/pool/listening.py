"""Waiting for everything that can happen to a process pool, in one `poll`."""

from __future__ import annotations

import math
import select

from paceline.pool.alarm import Alarm
from paceline.pool.channel import Message, ResultReader
from paceline.pool.launch import WorkerProcess


class Listener:
    """Hears messages, deaths of workers, and rings of an alarm. Also sends the rest of commands that a full pipe had no room for."""

    def __init__(self, results_fd: int) -> None:
        self._results_fd = results_fd
        self._results = ResultReader(results_fd)
        self._alarm = Alarm()
        self._poll = select.poll()
        self._poll.register(results_fd, select.POLLIN)
        self._poll.register(self._alarm.fd, select.POLLIN)
        self._by_pidfd: dict[int, WorkerProcess] = {}
        self._backlogged: dict[int, WorkerProcess] = {}

    def add(self, worker: WorkerProcess) -> None:
        """Hear of the worker's death."""
        if worker.pidfd is not None:
            self._poll.register(worker.pidfd, select.POLLIN)
            self._by_pidfd[worker.pidfd] = worker

    def remove(self, worker: WorkerProcess) -> None:
        """Hear nothing more of a worker, not even the rest of a message that it had begun."""
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
        """Wait for any event. Returns the messages that have come and the workers that have died."""
        messages: list[Message] = []
        died: list[WorkerProcess] = []
        for fd, _ in self._poll.poll(math.ceil(seconds * 1000)):
            if fd == self._results_fd:
                messages = self._results.read()
            elif fd == self._alarm.fd:
                self._alarm.hush()
            elif fd in self._by_pidfd:
                died.append(self._by_pidfd[fd])
            elif self._backlogged[fd].flush():
                self._unwatch(fd)
        return messages, died

    def read(self) -> list[Message]:
        """The messages that have come."""
        return self._results.read()

    def ring(self) -> None:
        """End the wait that is under way, or the next one. From any thread or signal handler."""
        self._alarm.ring()

    def close(self) -> None:
        self._alarm.close()

    def _unwatch(self, fd: int) -> None:
        if self._backlogged.pop(fd, None) is not None:
            self._poll.unregister(fd)
