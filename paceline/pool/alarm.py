"""`Alarm`: what ends a wait in `poll`, from another thread."""

from __future__ import annotations

import contextlib
import os
import threading


class Alarm:
    """A pipe to oneself: to be polled for reading at `fd`, along with whatever else is waited for."""

    def __init__(self) -> None:
        self._lock, self._closed = threading.Lock(), False
        self.fd, self._bell = os.pipe()
        for fd in (self.fd, self._bell):
            os.set_blocking(fd, False)

    def ring(self) -> None:
        """From any thread, at any time: nobody hears it any more once it is closed."""
        with self._lock, contextlib.suppress(BlockingIOError):  # it is full of rings that nobody has heard
            if not self._closed:
                os.write(self._bell, b"!")

    def hush(self) -> None:
        """All rings so far are heard."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 1 << 16)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            os.close(self.fd)
            os.close(self._bell)
