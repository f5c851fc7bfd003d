"""Stopping a run before its steps are done: because of a signal, its deadline, or another rank.

`Stop` is a flag that every loop of a run looks at: collection after each batch of steps, learning before each mini-batch. A loop
that sees it raises `StopRun`, and the run saves a checkpoint. Ranks have to raise it at the same place, or one of them would wait
for the others in a reduction: they agree on it where they meet anyway (`raise_if_agreed`, and the vote that travels with gradients).
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

from paceline.distributed.runtime import Group
from paceline.signals import INTERRUPTED, signals_handled_by

log = logging.getLogger(__name__)

ECHO_SECONDS = 1.0
"""Repeated signals within this window are ignored: one Ctrl-C may reach a process by several ways."""
POLL_SECONDS = 0.5
"""How often a rank checks whether another rank stops."""

Reason = Literal["signal", "deadline", "rank", "failure"]


class StopRun(Exception):
    """Unwinds a training loop that has to stop. The run gives up what the interrupted iteration has collected."""


class Stop:
    """Whether one rank's run has to stop, and why."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._wakes: list[Callable[[], None]] = []
        self.reason: Reason | None = None
        """The first reason; None while the run goes on."""
        self.loop_is_running = False
        """Whether a training loop looks at this. Before there is one, a signal raises `KeyboardInterrupt`."""

    @property
    def is_requested(self) -> bool:
        return self.reason is not None

    def request(self, reason: Reason) -> None:
        """From any thread, and from signal handlers."""
        if self.reason is None:
            self.reason = reason
        for wake in self._wakes:
            wake()

    def on_request(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a stop is requested: it ends a wait that would last too long."""
        self._wakes.append(wake)
        if self.is_requested:
            wake()

    def raise_if_alone(self) -> None:
        """Raise `StopRun` if a stop was requested and no other rank has to raise it too."""
        if self.is_requested and self._group.size == 1:
            raise StopRun

    def raise_if_agreed(self) -> None:
        """Raise `StopRun` on all ranks if any of them has to stop. All ranks call it together, between two updates."""
        self.raise_if(self._group.any(self.is_requested))

    def raise_if(self, agreed: bool) -> None:
        """Raise `StopRun` if the ranks have agreed on it."""
        if agreed:
            self.request("rank")
            raise StopRun

    @contextlib.contextmanager
    def after(self, seconds: float | None) -> Iterator[None]:
        """Within the context, request a stop once `seconds` have passed."""
        if seconds is None:
            yield
            return
        timer = threading.Timer(max(0.0, seconds), self.request, ["deadline"])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Within the context, a stop of one rank becomes a stop of all ranks, wherever they are."""
        store = self._group.store
        if store is None:
            yield
            return
        key, closed = self._group.new_name("stop"), threading.Event()

        def share() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone, and with it the group
                while not closed.wait(POLL_SECONDS):
                    if self.is_requested:
                        store.set(key, "1")
                        return
                    if store.check([key]):
                        self.request("rank")
                        return

        thread = threading.Thread(target=share, name="stop", daemon=True)
        thread.start()
        try:
            yield
        finally:
            closed.set()
            thread.join()

    def on_signals(self) -> contextlib.AbstractContextManager[None]:
        """Within the context, the first Ctrl-C or SIGTERM requests a stop. The second ends the process at once, without a checkpoint."""
        first_at = 0.0

        def handle(number: int, frame: object) -> None:
            nonlocal first_at
            if self.reason == "signal":
                if time.monotonic() - first_at > ECHO_SECONDS:
                    os._exit(INTERRUPTED)
                return
            first_at = time.monotonic()
            self.reason = "signal"  # whatever it was before: the user wants it, too
            if not self.loop_is_running:
                raise KeyboardInterrupt
            self.request("signal")
            if self._group.is_first:
                log.warning("stopping; a checkpoint will be saved. Press Ctrl-C again to stop at once, without one")

        return signals_handled_by(handle)
