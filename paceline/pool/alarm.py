"""`Alarm`: ends a wait in `poll`, from another thread or from a signal handler."""

from __future__ import annotations

import contextlib
import os
import threading


class Alarm:
    """A pipe to oneself: poll `fd` for reading, along with everything else that is waited for."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may ring while the thread that it interrupted is ringing or closing.
        self._lock, self._closed = threading.RLock(), False
        self.fd, self._bell = os.pipe()
        for fd in (self.fd, self._bell):
            os.set_blocking(fd, False)

    def ring(self) -> None:
        """From any thread or signal handler, at any time. A closed alarm stays silent."""
        with (
            self._lock,
            contextlib.suppress(BlockingIOError),
        ):  # the pipe is full of unheard rings: one more adds nothing
            if not self._closed:
                os.write(self._bell, b"!")

    def hush(self) -> None:
        """All rings so far are heard."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 1 << 16)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.close(self.fd)
            os.close(self._bell)
