"""`Callback`: code of yours that a run calls while it trains.

| method | called |
|---|---|
| `on_rollout(session)` | when the experience for an update is complete, before the policy learns from it |
| `on_episode(session, episode)` | for each episode that has ended on this rank, after an update |
| `on_update(session)` | after an update, when its steps are counted; in d4pg after every 16th |
| `on_checkpoint(session, folder)` | after a checkpoint was written to `folder` |
| `on_stop(session, error)` | once, when the session closes; `error` is the exception that ends it, or None |

A callback is any object with some of these methods. It need not be a subclass of `Callback`, which has them all and
does nothing. A method that returns True stops the run after the present update, with several ranks after the next one;
what the run has learned is saved.
`on_stop` cannot stop anything.

By default a callback is called on the first rank only. With the attribute `ranks = "all"` it is called on every rank,
with the episodes of that rank. d4pg has no rollouts. In appo and d4pg the learner thread calls `on_rollout`,
`on_episode` and `on_update`; no two calls ever run at the same time. An exception in a callback ends the run.

A handler of SIGINT, SIGTERM or SIGHUP that a callback installs stays until the session closes. Then the signal does
what the handler does, and stops nothing by itself. Handlers that simulators install are taken back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import numpy as np

from paceline.errors import UsageError, closest
from paceline.pool.protocol import Episode
from paceline.signals import noting_new_handlers

SessionT = TypeVar("SessionT")
EVENTS = ("on_rollout", "on_episode", "on_update", "on_checkpoint", "on_stop")


class Callback:
    """A callback that does nothing. See the module for when its methods are called."""

    ranks: Literal["first", "all"] = "first"

    def on_rollout(self, session: Any) -> bool | None: ...

    def on_episode(self, session: Any, episode: Episode) -> bool | None: ...

    def on_update(self, session: Any) -> bool | None: ...

    def on_checkpoint(self, session: Any, folder: Path) -> bool | None: ...

    def on_stop(self, session: Any, error: BaseException | None) -> None: ...


class Callbacks(Generic[SessionT]):
    """The callbacks of one session, on one rank."""

    def __init__(
        self,
        callbacks: Iterable[object],
        session: SessionT,
        *,
        is_first: bool,
        handlers: dict[int, Any] | None = None,
    ) -> None:
        """`handlers` gets the signal handlers that callbacks install."""
        self._session, self._lock = session, threading.RLock()
        self._handlers = {} if handlers is None else handlers
        self._methods: dict[str, list[Callable[..., Any]]] = {event: [] for event in EVENTS}
        for callback in callbacks:
            if _ranks_of(callback) == "all" or is_first:
                for event in EVENTS:
                    if hasattr(callback, event):
                        self._methods[event].append(getattr(callback, event))
        self.wants_stop = False
        """Whether a callback of this rank has returned True."""

    def rollout(self) -> None:
        self._call("on_rollout")

    def update(self, episodes: Sequence[Episode]) -> None:
        """After an update. `episodes` have ended since the last one."""
        for episode in episodes if self._methods["on_episode"] else ():
            self._call("on_episode", episode)
        self._call("on_update")

    def checkpoint(self, folder: Path) -> None:
        self._call("on_checkpoint", folder)

    def stop(self, error: BaseException | None) -> None:
        self._call("on_stop", error)

    def _call(self, event: str, *arguments: Any) -> None:
        with self._lock, noting_new_handlers(self._handlers):
            for method in self._methods[event]:
                answer = method(self._session, *arguments)
                if answer is not None and not isinstance(answer, bool | np.bool_):
                    raise UsageError(f"{event} of a callback returned {answer!r}; allowed: True to stop, False, None")
                self.wants_stop = self.wants_stop or bool(answer)


def require_callbacks(callbacks: Iterable[object]) -> None:
    """Refuse objects that no event would call, and misspelt methods."""
    for callback in callbacks:
        name = type(callback).__name__ if not isinstance(callback, type) else callback.__name__
        if isinstance(callback, type):
            raise UsageError(f"the callback {name} is a class; allowed: an object, {name}(...)")
        own = [method for method in dir(callback) if method.startswith("on_")]
        for method in own:
            if method not in EVENTS:
                raise UsageError(
                    f"the callback {name} has a method {method}{closest(method, EVENTS)}; allowed: {', '.join(EVENTS)}"
                )
        if not own:
            raise UsageError(f"the callback {name} has no method that is called; allowed: {', '.join(EVENTS)}")
        _ranks_of(callback)


def _ranks_of(callback: object) -> str:
    ranks = getattr(callback, "ranks", "first")
    if ranks not in ("first", "all"):
        raise UsageError(f"ranks of the callback {type(callback).__name__} is {ranks!r}; allowed: first, all")
    return str(ranks)
