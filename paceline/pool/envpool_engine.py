"""Waiting for EnvPool, which cannot be interrupted.

EnvPool's `recv` has no time-out and returns nothing until enough rows are there: called with too few environments
under way it blocks for ever, deaf to Ctrl-C. So it is only ever called with enough under way, and by a thread of our
own, which hands parcels over through a queue, on which anyone may wait with a time-out.

That hand-over costs about 0.1 ms per batch (2 cores): a fifth of the speed of 64 CartPole. An engine that has been answering
within `BRISK_SECONDS` is therefore waited for directly. Should it hang all the same, nothing in this process could end the
wait, and a watchdog ends the process.

Autoreset is done here as well. EnvPool resets an environment that ended an episode when it is sent its next action,
whatever that is. The row that ended is kept back while a meaningless action is sent, and is handed over with the
observation that comes of it: neither that action nor its row exists outside. (EnvPool's own `reset` is something else:
it starts a new game where only a life was lost.)
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from typing import Any

import numpy as np

from paceline.accel.pinning import bind, make_noting_threads, unbind
from paceline.envs.envpool import EnvPoolTask
from paceline.errors import Failure, SimulatorError
from paceline.pool.envpool_rows import RowReader
from paceline.pool.parcels import Parcel

BRISK_SECONDS = 0.005
"""Of a whole batch, the slowest of late."""
BOUND_SECONDS = (0.001, 0.005)
"""Of a whole batch: threads gain from being bound to cores where this is what they are woken for, if there is one for each core. (Two
cores: 64 HalfCheetah, 2.3 ms, train at 22,000 steps a second instead of 20,000; 64 CartPole, 0.4 ms, for which one core does as well, at
46,000 instead of 55,500; 32 Breakout, 25 ms, beside a learner that needs a core itself, at 390 instead of 415.)"""
LOOKS = 64
"""Batches from one look at these times to the next."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one engine has to run."""

    group: int
    task: EnvPoolTask
    slots: range
    seeds: list[int]
    threads: int
    cores: list[int]
    affinity: bool | None
    """Whether each thread is bound to one of `cores`; None where that is to be found out."""
    no_action: np.ndarray
    """Some action for every environment."""

    def make(self) -> Any:
        return self.task(len(self.slots), env_seed=self.seeds, num_threads=self.threads)


@dataclass(slots=True)
class Flight:
    """A batch on its way: local ids, actions, when it was sent, and whether it was sent yet."""

    ids: np.ndarray
    actions: np.ndarray
    since: float
    sent: bool


class Binding:
    """Whether the threads of one EnvPool are bound to cores. Without being told, those of an asynchronous one are not."""

    def __init__(self, work: Assignment) -> None:
        one_each = work.threads == len(work.cores)
        self._cores, self._affinity = work.cores, work.affinity if one_each else bool(work.affinity)
        self._threads: list[int] = []
        self._is_bound = False
        self._looks, self._seconds = 0, 0.0

    def make(self, make: Callable[[], Any]) -> Any:
        """The EnvPool. Those of its threads that step are started one after the other; one that fetches memory is among them."""
        if self._affinity is False:
            return make()
        made, self._threads = make_noting_threads(make)
        if self._affinity:
            bind(self._threads, self._cores)
        return made

    def look(self, seconds: float) -> None:
        """A batch took so long, or was asked for so late."""
        if self._affinity is not None:
            return
        least, most = BOUND_SECONDS
        self._looks, self._seconds = self._looks + 1, self._seconds + min(seconds, 2 * most)
        if self._looks < LOOKS:
            return
        wanted = least <= self._seconds / self._looks <= most
        if wanted != self._is_bound:
            (bind if wanted else unbind)(self._threads, self._cores)
            self._is_bound = wanted
        self._looks, self._seconds = 0, 0.0


class Engine:
    """One EnvPool and the thread that waits for it.

    `launch` begins steps; what has come of them is put into `results`: `(group, Parcel)`, or one `Failure` and then
    nothing more. Only what `complete` returns has not been there. Everything begins with a reset of all environments.
    """

    def __init__(self, work: Assignment, reader: RowReader, results: SimpleQueue[Any]) -> None:
        self.work = work
        self._reader, self._results = reader, results
        self._slots = np.arange(work.slots.start, work.slots.stop)
        self._slots.flags.writeable = False  # handed out again and again
        self._ids = np.arange(len(work.slots), dtype=np.int32)
        self._sent_at = np.full(len(work.slots), inf)
        # With a single environment both modes mean the same, and EnvPool takes it for the synchronous one.
        self._asynchronous = bool(work.task.batch_size) and len(work.slots) > 1
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._direct: Flight | None = None
        self._slowest = inf
        self._binding = Binding(work)
        self._envpool: Any = None
        self._sending = threading.Lock()
        # EnvPool reads ids and actions when it gets to them, so they have to live until the row is back.
        self._in_use: list[Any] = [None] * len(work.slots)
        self._thread = threading.Thread(target=self._run, name="envpool", daemon=True)
        self._thread.start()

    def launch(self, slots: np.ndarray, actions: np.ndarray, alone: bool) -> None:
        """Begin a step of `slots` (ascending); `alone`: nothing else is under way. `actions` is the engine's from here.

        EnvPool is started from here rather than from the thread, which might not get the interpreter lock soon.
        """
        envpool = self._envpool
        if envpool is None:  # it has failed, and the failure waits in `results`
            return
        ids = self._ids if len(slots) == len(self._ids) else (slots - self.work.slots.start).astype(np.int32)
        if self._asynchronous:
            self._sent_at[ids] = time.monotonic()
            for env in ids.tolist():
                self._in_use[env] = (ids, actions)
            self._requests.put(len(ids))  # before they are sent: a row that comes back has been announced
            with self._sending:
                envpool._send([ids, ids, actions])
            return
        flight = Flight(ids, actions, time.monotonic(), sent=alone)
        if alone:
            envpool._send([ids, ids, actions])
            if self._slowest < BRISK_SECONDS:
                self._direct = flight
                return
        self.leave_to_thread()
        self._pass_on(flight)

    @property
    def direct_since(self) -> float:
        """When the flight began that has to be waited for with `complete`; infinite where there is none."""
        return inf if self._direct is None else self._direct.since

    def complete(self) -> Parcel:
        """Wait, uninterruptibly, for what `direct_since` tells of."""
        flight, self._direct = self._direct, None
        assert flight is not None
        parcel = self._finish(self._envpool, flight.ids)
        self._time(parcel, self._lasted(flight), len(flight.ids))
        return parcel

    def leave_to_thread(self) -> None:
        """Whatever would have to be waited for directly comes through `results` instead."""
        flight, self._direct = self._direct, None
        if flight is not None:
            self._pass_on(flight)

    @property
    def made(self) -> bool:
        """The environments exist."""
        return self._envpool is not None

    def waiting_since(self, moment: float) -> list[int]:
        """The slots that were sent before `moment` and have not come back."""
        return self._slots[self._sent_at < moment].tolist()

    def ask_to_stop(self) -> None:
        """The thread ends, and with it the environments, after the step under way."""
        self._requests.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the end. A simulator that hangs is left behind, with the thread that waits for it."""
        self._thread.join(timeout)

    def _run(self) -> None:
        phase = "make"
        try:
            self._envpool = self._binding.make(self.work.make)
            phase = "step"
            self._sent_at[:] = time.monotonic()
            self._envpool._reset(self._ids)
            if self._asynchronous:
                self._one_by_one(self._envpool)
            else:
                self._together(self._envpool)
        except SimulatorError as error:
            self._results.put(error.failure)
        except Exception as error:
            slots = tuple(self.work.slots)
            cause = f"{type(error).__name__}: {error}"
            failure = Failure(cause=cause, phase=phase, envs=slots, slots=slots, traceback=traceback.format_exc())
            self._results.put(failure)
        finally:
            self._envpool = None  # its destructor ends its threads

    def _together(self, envpool: Any) -> None:
        """Synchronous mode: one batch under way at a time, its rows in the order in which they were sent.

        EnvPool numbers the rows of every `send` from zero, so a second one before `recv` would overwrite the first:
        whatever is launched meanwhile waits for its turn.
        """
        parcel = self._reader.first(envpool._recv(), self._slots)
        self._hand_over(parcel, self._ids, time.monotonic() - self._sent_at[0], len(self._ids))
        while (flight := self._requests.get()) is not None:
            if not flight.sent:
                flight.since = time.monotonic()
                envpool._send([flight.ids, flight.ids, flight.actions])
            parcel = self._finish(envpool, flight.ids)
            self._hand_over(parcel, flight.ids, self._lasted(flight), len(flight.ids))

    def _finish(self, envpool: Any, ids: np.ndarray) -> Parcel:
        reader = self._reader
        state = envpool._recv()
        slots = self._slots if ids is self._ids else self._slots[ids]
        ended = reader.ended(state)
        if not len(ended):
            return reader.step(state, slots, ended)
        again = ids[ended]
        self._restart(envpool, again)
        parcel = reader.step(state, slots, ended)  # while EnvPool resets
        reader.restart(parcel, ended, envpool._recv())
        return parcel

    def _one_by_one(self, envpool: Any) -> None:
        """Asynchronous mode: every row is handed over when it is there, in the order in which they are finished."""
        reader, flying = self._reader, len(self._ids)
        only = np.zeros(1, np.int64)
        unfinished: dict[int, Parcel | None] = dict.fromkeys(range(flying))  # waiting for a first observation
        while True:
            while flying <= 0 or not self._requests.empty():
                announced = self._requests.get()
                if announced is None:
                    return
                flying += announced
            state = envpool._recv()
            env = reader.env(state)
            ids, slots = self._ids[env : env + 1], self._slots[env : env + 1]
            if env in unfinished:
                parcel = unfinished.pop(env)
                if parcel is None:
                    parcel = reader.first(state, slots)
                else:
                    reader.restart(parcel, only, state)
            else:
                ended = reader.ended(state)
                parcel = reader.step(state, slots, ended)
                if len(ended):
                    unfinished[env] = parcel
                    self._restart(envpool, ids)
                    continue
            self._hand_over(parcel, ids, time.monotonic() - self._sent_at[env], max(1, flying))
            flying -= 1  # may fall below zero: a row can be back before its announcement was read

    def _restart(self, envpool: Any, ids: np.ndarray) -> None:
        with self._sending:
            envpool._send([ids, ids, self.work.no_action[: len(ids)]])

    def _lasted(self, flight: Flight) -> float:
        """How long `flight` took; the slowest are remembered for a while."""
        seconds = time.monotonic() - flight.since
        self._binding.look(seconds)
        self._slowest = seconds if self._slowest == inf else max(seconds, 0.9 * self._slowest)
        return seconds

    def _pass_on(self, flight: Flight) -> None:
        self._sent_at[flight.ids] = time.monotonic()
        self._requests.put(flight)

    def _hand_over(self, parcel: Parcel, ids: np.ndarray, seconds: float, flying: int) -> None:
        self._time(parcel, seconds, flying)
        self._sent_at[ids] = inf
        self._results.put((self.work.group, parcel))

    def _time(self, parcel: Parcel, seconds: float, flying: int) -> None:
        """`flying` rows shared the threads for `seconds`; EnvPool does not measure, so a row's time is an estimate."""
        parcel.step_seconds = np.full(len(parcel), seconds * min(self.work.threads, flying) / flying, np.float32)
