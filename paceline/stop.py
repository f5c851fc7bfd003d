"""Stopping a run before all steps are done: after a signal, at its deadline, or because another rank stops.

`Stop` is a flag. Every loop of a run checks it: collection after each batch of steps, learning before each mini-batch.
Collection ends early when the flag is set. Then `StopRun` ends the training loop, and the run saves a checkpoint.

With several ranks, all must raise `StopRun` at the same place in the program. Otherwise one rank would wait in a
reduction for ranks that have left. So the ranks combine their flags where they communicate anyway, and all raise it if
any flag is set:

| where | how the flags are combined | method |
|---|---|---|
| between two updates | a reduction of the flags (`Group.any`) | `raise_if_agreed` |
| in an update, before the gradient is applied | each flag is a vote that travels with the gradient | `raise_if` |
| where ranks do not communicate | not at all: only a run of one rank stops here | `raise_if_alone` |
| in an update of a policy that one of several ranks trains | its update ends, and the ranks agree after it | both |

To get all ranks there soon, `shared` copies the flag of one rank to all ranks, within half a second.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

from paceline.distributed.runtime import Group
from paceline.signals import INTERRUPTED, is_interactive, signals_handled_by, take_back
from paceline.telemetry.console import show_cursor

log = logging.getLogger(__name__)

ECHO_SECONDS = 1.0
"""Repeated signals within this window are ignored: one Ctrl-C may reach a process several times."""
KEEP_SECONDS = 0.5
"""How often a run looks whether a simulator has taken its signals."""
POLL_SECONDS = 0.5
"""How often a rank checks whether another rank stops."""

Reason = Literal["signal", "deadline", "rank", "failure"]


class StopRun(Exception):
    """Ends a training loop early. The run discards what the interrupted iteration has collected."""


class Stop:
    """The stop flag of one rank, with the reason."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._wakes: list[Callable[[], None]] = []
        self._handle: Callable[[int, object], None] | None = None
        self._keep_at = 0.0
        """When `keep_signals` next looks."""
        self.handlers_of_callbacks: dict[int, Any] = {}
        """By signal: the handler that a callback of the user has installed. It stays."""
        self.reason: Reason | None = None
        """The first reason; None while the run continues."""
        self.loop_is_running = False
        """Whether a training loop checks the flag. Before that, a signal raises `KeyboardInterrupt`."""
        self.only_sets_flag = False
        """Whether a signal only sets the flag, also between two calls of `Session.run`."""

    @property
    def is_requested(self) -> bool:
        return self.reason is not None

    def request(self, reason: Reason) -> None:
        """Set the flag. Any thread and any signal handler may call this."""
        if self.reason is None:
            self.reason = reason
        for wake in self._wakes:
            wake()

    def on_request(self, wake: Callable[[], None]) -> None:
        """Call `wake` when a stop is requested, to end a long wait."""
        self._wakes.append(wake)
        if self.is_requested:
            wake()

    def raise_if_alone(self, group: Group | None = None) -> None:
        """Raise `StopRun` if a stop is requested and this is the only rank of `group`, by default of all ranks. Several
        ranks stop elsewhere, together."""
        if self.is_requested and (group or self._group).size == 1:
            raise StopRun

    def raise_if_agreed(self) -> None:
        """Raise `StopRun` on all ranks if any requests a stop. All ranks call this together, between two updates."""
        self.raise_if(self._group.any(self.is_requested))

    def raise_if(self, agreed: bool) -> None:
        """Raise `StopRun` if `agreed`: any rank requests a stop. `agreed` is the same on all ranks."""
        if agreed:
            self.request("rank")
            raise StopRun

    @contextlib.contextmanager
    def after(self, seconds: float | None) -> Iterator[None]:
        """Inside the context, request a stop after `seconds`; never if None."""
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
        """Inside the context, a stop that one rank requests is requested on all ranks, by a key in the store."""
        store = self._group.store
        if store is None:
            yield
            return
        key, closed = self._group.new_name("stop"), threading.Event()

        def share() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone, and the group with it
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
        """Inside the context, the first Ctrl-C, SIGTERM or SIGHUP requests a stop; the second ends the process at once.

        In a notebook or an interactive interpreter the second one raises `KeyboardInterrupt`, because the process holds
        the user's other work.
        """
        first_at = 0.0

        def handle(number: int, frame: object) -> None:
            nonlocal first_at
            if self.reason == "signal":
                if time.monotonic() - first_at <= ECHO_SECONDS:
                    return
                if not is_interactive():
                    show_cursor()
                    os._exit(INTERRUPTED)
                raise KeyboardInterrupt
            first_at = time.monotonic()
            self.reason = "signal"  # replaces any other reason: the user wants the stop, too
            if not (self.loop_is_running or self.only_sets_flag):
                raise KeyboardInterrupt
            self.request("signal")
            if self._group.is_first:
                log.warning("stopping; a checkpoint will be saved. Press Ctrl-C again to stop at once, without one")

        self._handle = handle
        return signals_handled_by(handle)

    def keep_signals(self) -> None:
        """Take signals back from a simulator in this process that has installed handlers of its own. The main thread
        calls it again and again while it collects."""
        now = time.monotonic()
        if self._handle is not None and now >= self._keep_at:
            self._keep_at = now + KEEP_SECONDS
            take_back(self._handle, self.handlers_of_callbacks)
