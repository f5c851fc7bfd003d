"""Waiting for EnvPool, which cannot be interrupted.

EnvPool's `recv` has no time-out. It blocks, deaf to Ctrl-C, until enough rows are there, and for ever if too few
environments are in flight. So a thread of our own calls it, only with enough environments in flight, and puts the rows
into a queue, on which the pool waits with a time-out.

This hand-over costs a noticeable part of the speed of light tasks. So the pool waits directly for an engine whose
recent batches took less than `FAST_SECONDS`. If such an engine hangs, nothing in this process can end the wait, and a
watchdog ends the process.

The engine also does the autoreset. EnvPool resets an environment that ended an episode at its next action, whatever
that action is. The engine keeps the row that ended, sends a dummy action, and hands the row over with the observation
that comes back. Neither the dummy action nor its row is visible outside. (EnvPool's own `reset` is different: it starts
a new game where only a life was lost.)
"""

from __future__ import annotations

import os
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
from paceline.errors import SimulatorError, SimulatorFailure
from paceline.pool.envpool_rows import FinishedRows, RowReader

FAST_SECONDS = 0.005
"""Longest recent batch of an engine for which the pool waits directly."""
BOUND_SECONDS = (0.001, 0.005)
"""Durations of a batch for which binding threads to cores pays, if there is one thread for each core. Shorter batches
do not need all cores, and longer ones compete with the learner."""
LOOKS = 64
"""Batches between two decisions about binding."""


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What one engine runs."""

    group: int
    task: EnvPoolTask
    slots: range
    seeds: list[int]
    threads: int
    cores: list[int]
    affinity: bool | None
    """Whether each thread is bound to one of `cores`. None: decide by the duration of batches."""
    no_action: np.ndarray
    """A dummy action for every environment."""

    def make(self) -> Any:
        return self.task(len(self.slots), env_seed=self.seeds, num_threads=self.threads)


class Binding:
    """Binds the threads of one EnvPool to cores where that pays. Without a setting, asynchronous ones stay unbound."""

    def __init__(self, work: EngineConfig) -> None:
        one_each = work.threads == len(work.cores)
        self._cores, self._affinity = work.cores, work.affinity if one_each else bool(work.affinity)
        self._threads: list[int] = []
        self._is_bound = False
        self._looks, self._seconds = 0, 0.0

    def make(self, make: Callable[[], Any]) -> Any:
        """The EnvPool. Its stepping threads start one after the other, together with one that prefetches memory."""
        if self._affinity is False:
            return make()
        made, self._threads = make_noting_threads(make)
        if self._affinity:
            bind(self._threads, self._cores)
        return made

    def look(self, seconds: float) -> None:
        """Note the duration of a batch."""
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


@dataclass(slots=True)
class _Flight:
    """A batch in flight: local environment ids, actions, start time, and whether it was sent to EnvPool."""

    ids: np.ndarray
    actions: np.ndarray
    since: float
    sent: bool


class Engine:
    """One EnvPool and the thread that waits for it.

    `launch` starts steps. Their results arrive in `results` as `(group, FinishedRows)`, or as one `SimulatorFailure`
    and then nothing more, unless `complete` returns them. At first all environments are reset.
    """

    def __init__(self, work: EngineConfig, reader: RowReader, results: SimpleQueue[Any]) -> None:
        self.work = work
        self._reader, self._results = reader, results
        self._slots = np.arange(work.slots.start, work.slots.stop)
        self._slots.flags.writeable = False  # shared by all batches
        self._ids = np.arange(len(work.slots), dtype=np.int32)
        self._sent_at = np.full(len(work.slots), inf)
        # With a single environment both modes are the same, and EnvPool uses the synchronous one.
        self._asynchronous = bool(work.task.batch_size) and len(work.slots) > 1
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._direct: _Flight | None = None
        self._slowest = inf
        self._binding = Binding(work)
        self._envpool: Any = None
        self._sending = threading.Lock()
        # EnvPool reads ids and actions later, so they must live until the row is back.
        self._in_use: list[Any] = [None] * len(work.slots)
        self._thread = threading.Thread(target=self._run, name="envpool", daemon=True)
        self._thread.start()

    def launch(self, slots: np.ndarray, actions: np.ndarray, alone: bool) -> None:
        """Start a step of `slots` (ascending). `alone`: nothing else is in flight. The engine owns `actions` from now
        on.

        The caller's thread sends to EnvPool, because the engine's thread might have to wait for the interpreter lock.
        """
        envpool = self._envpool
        if envpool is None:  # it has failed, and the failure is in `results`
            return
        ids = self._ids if len(slots) == len(self._ids) else (slots - self.work.slots.start).astype(np.int32)
        if self._asynchronous:
            self._sent_at[ids] = time.monotonic()
            for env in ids.tolist():
                self._in_use[env] = (ids, actions)
            self._requests.put(len(ids))  # first, so that the thread knows of rows before they come back
            with self._sending:
                envpool._send([ids, ids, actions])
            return
        flight = _Flight(ids, actions, time.monotonic(), sent=alone)
        if alone:
            envpool._send([ids, ids, actions])
            if self._slowest < FAST_SECONDS:
                self._direct = flight
                return
        self.leave_to_thread()
        self._pass_on(flight)

    @property
    def direct_since(self) -> float:
        """Start time of the flight for which the pool must call `complete`. Infinite if there is none."""
        return inf if self._direct is None else self._direct.since

    def complete(self) -> FinishedRows:
        """Wait for the flight of `direct_since`, without interruption."""
        flight, self._direct = self._direct, None
        assert flight is not None
        rows = self._finish(self._envpool, flight.ids)
        self._set_step_seconds(rows, self._duration(flight), len(flight.ids))
        return rows

    def leave_to_thread(self) -> None:
        """Let the thread wait for the flight of `direct_since`."""
        flight, self._direct = self._direct, None
        if flight is not None:
            self._pass_on(flight)

    @property
    def made(self) -> bool:
        """Whether the environments exist."""
        return self._envpool is not None

    def waiting_since(self, moment: float) -> list[int]:
        """Slots that were sent before `moment` and have not come back."""
        return self._slots[self._sent_at < moment].tolist()

    def ask_to_stop(self) -> None:
        """End the thread and the environments after the current step."""
        self._requests.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the end. A simulator that hangs stays behind, with its thread."""
        self._thread.join(timeout)

    def _run(self) -> None:
        phase = "make"
        try:
            self._envpool = self._binding.make(self.work.make)
            phase = "step"
            self._sent_at[:] = time.monotonic()
            self._envpool._reset(self._ids)
            if self._asynchronous:
                self._run_asynchronous(self._envpool)
            else:
                self._run_synchronous(self._envpool)
        except SimulatorError as error:
            self._results.put(error.failure)
        except Exception as error:
            slots = tuple(self.work.slots)
            cause = f"{type(error).__name__}: {error}"
            failure = SimulatorFailure(
                cause=cause, phase=phase, envs=slots, slots=slots, traceback=traceback.format_exc()
            )
            self._results.put(failure)
        finally:
            self._envpool = None  # its destructor ends its threads

    def _run_synchronous(self, envpool: Any) -> None:
        """One batch in flight at a time, with its rows in the order of `send`.

        EnvPool numbers the rows of every `send` from zero, so a second `send` before `recv` would overwrite the first.
        Later flights wait for their turn.
        """
        rows = self._reader.first(envpool._recv(), self._slots)
        self._hand_over(rows, self._ids, time.monotonic() - self._sent_at[0], len(self._ids))
        while (flight := self._requests.get()) is not None:
            if not flight.sent:
                flight.since = time.monotonic()
                envpool._send([flight.ids, flight.ids, flight.actions])
            rows = self._finish(envpool, flight.ids)
            self._hand_over(rows, flight.ids, self._duration(flight), len(flight.ids))

    def _finish(self, envpool: Any, ids: np.ndarray) -> FinishedRows:
        reader = self._reader
        state = envpool._recv()
        slots = self._slots if ids is self._ids else self._slots[ids]
        ended = reader.ended(state)
        if not len(ended):
            return reader.step(state, slots, ended)
        self._reset(envpool, ids[ended])
        rows = reader.step(state, slots, ended)  # while EnvPool resets
        reader.restart(rows, ended, envpool._recv())
        return rows

    def _run_asynchronous(self, envpool: Any) -> None:
        """Hand over every row as soon as it is finished."""
        reader, in_flight = self._reader, len(self._ids)
        only = np.zeros(1, np.int64)
        unfinished: dict[int, FinishedRows | None] = dict.fromkeys(range(in_flight))  # await a first observation
        while True:
            while in_flight <= 0 or not self._requests.empty():
                announced = self._requests.get()
                if announced is None:
                    return
                in_flight += announced
            state = envpool._recv()
            env = reader.env(state)
            ids, slots = self._ids[env : env + 1], self._slots[env : env + 1]
            if env in unfinished:
                rows = unfinished.pop(env)
                if rows is None:
                    rows = reader.first(state, slots)
                else:
                    reader.restart(rows, only, state)
            else:
                ended = reader.ended(state)
                rows = reader.step(state, slots, ended)
                if len(ended):
                    unfinished[env] = rows
                    self._reset(envpool, ids)
                    continue
            self._hand_over(rows, ids, time.monotonic() - self._sent_at[env], max(1, in_flight))
            in_flight -= 1  # may become negative, because a row can be back before its request is read

    def _reset(self, envpool: Any, ids: np.ndarray) -> None:
        with self._sending:
            envpool._send([ids, ids, self.work.no_action[: len(ids)]])

    def _duration(self, flight: _Flight) -> float:
        """How long `flight` took. Also updates the recent maximum."""
        seconds = time.monotonic() - flight.since
        self._binding.look(seconds)
        self._slowest = seconds if self._slowest == inf else max(seconds, 0.9 * self._slowest)
        return seconds

    def _pass_on(self, flight: _Flight) -> None:
        self._sent_at[flight.ids] = time.monotonic()
        self._requests.put(flight)

    def _hand_over(self, rows: FinishedRows, ids: np.ndarray, seconds: float, in_flight: int) -> None:
        self._set_step_seconds(rows, seconds, in_flight)
        self._sent_at[ids] = inf
        self._results.put((self.work.group, rows))

    def _set_step_seconds(self, rows: FinishedRows, seconds: float, in_flight: int) -> None:
        """Estimate the time of each row, which EnvPool does not measure. `in_flight` rows shared the threads."""
        share = min(self.work.threads, in_flight) / in_flight
        rows.step_seconds = np.full(len(rows), seconds * share, np.float32)


class Watchdog:
    """Ends the process, with a message and exit code 1, if a guarded call takes longer than `seconds`.

    For calls into foreign code that neither time out nor react to signals. A thread looks at the clock at intervals, so
    `guard` and `release` cost almost nothing.
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
