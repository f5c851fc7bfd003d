"""Messages between a process pool and its workers, over plain pipes.

A queue in shared memory needs a lock, and a worker killed while it holds the lock stops everybody. A pipe has no such
state. POSIX makes writes of up to PIPE_BUF bytes atomic, so all workers share ONE results pipe, messages never
interleave, and a single `read` returns everything that is waiting. Both ends notice each other's death from the pipe.
`paceline bench channel` compares the speed with a queue in shared memory.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

_READ_BYTES = 1 << 16
_COMMAND = struct.Struct("<iI")  # kind, payload bytes
_RESULT = struct.Struct("<iBBH")  # sender, kind, more chunks follow, payload bytes
_CHUNK = select.PIPE_BUF - _RESULT.size


class Command:
    """Kinds of messages to one worker."""

    BUILD, ATTACH, RESET, STEP, REMAKE, STATE, RESTORE, CLOSE = range(8)


class Result:
    """Kinds of messages from the workers. MADE is one environment, BUILT is all of a worker."""

    MADE, BUILT, READY, EPISODES, FAILED, ANSWER = range(6)


class Message(NamedTuple):
    sender: int
    kind: int
    payload: bytes


class CommandWriter:
    """The pool's end of one worker's commands pipe.

    It never blocks, so a worker that does not read cannot stop the pool. Commands to a dead worker are dropped, since
    the pool notices its death elsewhere.
    """

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._backlog = bytearray()

    def send(self, kind: int, payload: bytes = b"") -> bool:
        """Send one command. Returns False if a part of it waits in the backlog for `flush`."""
        data = _COMMAND.pack(kind, len(payload)) + payload
        if not self._backlog:
            written = self._write(data)
            if written == len(data):
                return True
            data = data[written:]
        self._backlog += data
        return False

    def flush(self) -> bool:
        """Write as much of the backlog as the pipe takes. Returns whether the backlog is empty."""
        while self._backlog:
            written = self._write(memoryview(self._backlog)[:_READ_BYTES].tobytes())
            if not written:
                return False
            del self._backlog[:written]
        return True

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self.fd, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)


def read_commands(fd: int) -> Iterator[tuple[int, bytes]]:
    """Commands in order, until the pool closes its end or dies."""
    pending = b""
    while data := os.read(fd, _READ_BYTES):
        pending = pending + data if pending else data
        start = 0
        while len(pending) - start >= _COMMAND.size:
            kind, size = _COMMAND.unpack_from(pending, start)
            end = start + _COMMAND.size + size
            if end > len(pending):
                break
            yield kind, pending[start + _COMMAND.size : end]
            start = end
        pending = pending[start:]


class ResultWriter:
    """A worker's end of the shared results pipe. It writes long messages in chunks, each of them atomically."""

    def __init__(self, fd: int, sender: int) -> None:
        self._fd, self._sender = fd, sender

    def send(self, kind: int, payload: bytes) -> None:
        for start in range(0, max(1, len(payload)), _CHUNK):
            chunk = payload[start : start + _CHUNK]
            more = start + _CHUNK < len(payload)
            os.write(self._fd, _RESULT.pack(self._sender, kind, more, len(chunk)) + chunk)


class ResultReader:
    """The pool's end of the results pipe, which must be non-blocking."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._pending = b""
        self._parts: dict[int, list[bytes]] = {}

    def read(self) -> list[Message]:
        """All complete messages that are waiting. Messages of one sender are in order."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        data = self._pending + data if self._pending else data
        messages, start = [], 0
        while len(data) - start >= _RESULT.size:
            sender, kind, more, size = _RESULT.unpack_from(data, start)
            end = start + _RESULT.size + size
            if end > len(data):
                break
            chunk = data[start + _RESULT.size : end]
            start = end
            if more:
                self._parts.setdefault(sender, []).append(chunk)
            else:
                parts = self._parts.pop(sender, None) if self._parts else None
                messages.append(Message(sender, kind, b"".join(parts) + chunk if parts else chunk))
        self._pending = data[start:]
        return messages

    def forget(self, sender: int) -> None:
        """Drop the incomplete message of a dead worker."""
        self._parts.pop(sender, None)


class Requests:
    """One round of requests to workers at a time. Late answers to an earlier round are ignored."""

    def __init__(self) -> None:
        self._round = 0
        self.answers: dict[int, Any] = {}
        """By worker."""
        self.unanswered: set[int] = set()
        """Workers that may still answer."""

    def begin(self, jobs: Mapping[int, object]) -> dict[int, bytes]:
        """Start a round. Returns the payload for each worker that has a job."""
        self._round += 1
        self.answers, self.unanswered = {}, set(jobs)
        return {number: pickle.dumps((self._round, job)) for number, job in jobs.items()}

    def take(self, number: int, payload: bytes) -> None:
        """Note the answer of a worker."""
        asked, answer = pickle.loads(payload)
        if asked == self._round and number in self.unanswered:
            self.answers[number] = answer
            self.unanswered.discard(number)


def pack_ints(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def unpack_ints(payload: bytes) -> list[int]:
    return memoryview(payload).cast("i").tolist()
