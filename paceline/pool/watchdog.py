"""The last resort against a wait that nothing in this process can interrupt."""

from __future__ import annotations

import os
import threading
import time
from math import inf


class Watchdog:
    """Ends the process, with a message and exit code 1, once a wait has lasted for `seconds`.

    For calls into foreign code that neither time out nor let signals through. `guard` and `release` cost next to
    nothing: the thread behind them looks at the clock only now and then, so it may bite a little late.
    """

    def __init__(self, seconds: float, message: str) -> None:
        self._seconds, self._message = seconds, message
        self._deadline = inf
        self._stopped = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def guard(self) -> None:
        self._deadline = time.monotonic() + self._seconds

    def release(self) -> None:
        self._deadline = inf

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        while not self._stopped.wait(min(self._seconds, 1.0)):
            if time.monotonic() > self._deadline:
                os.write(2, f"{self._message}\n".encode())
                os._exit(1)
