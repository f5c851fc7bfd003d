"""Threads that wait for EnvPool, because waiting for EnvPool cannot be interrupted.

EnvPool's `recv` has no time-out and returns nothing until enough rows are there: called with too few environments
under way it blocks for ever, deaf to Ctrl-C. Here a thread of our own calls it, only ever with enough under way, and
reports finished slots through a queue, on which anyone may wait with a time-out. The hand-over costs about 15 us per
batch (2 cores, 64 CartPole), less than is saved by calling EnvPool's inner methods.

Autoreset is done here as well: a row that ended an episode is reported only once the environment has been reset, by
request and not by a made-up action, so no artificial step exists anywhere.
"""

from __future__ import annotations

import threading
import time
import traceback
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np

from paceline.envs.envpool import EnvPoolTask
from paceline.errors import Failure, SimulatorError
from paceline.pool.envpool_rows import Rows, RowWriter
from paceline.pool.table import SlotTable


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one engine has to run."""

    task: EnvPoolTask
    slots: range
    seeds: list[int]
    threads: int
    affinity: bool

    def make(self) -> Any:
        return self.task(
            len(self.slots),
            env_seed=self.seeds,
            num_threads=self.threads,
            thread_affinity_offset=0 if self.affinity else -1,
        )


class Engine:
    """One EnvPool and the thread that waits for it.

    `launch` begins steps; what has come of them is put into `results`: lists of slots whose rows in the table are
    complete, or one `Failure` and then nothing more. Everything begins with a reset of all environments.
    """

    def __init__(
        self, work: Assignment, writer: RowWriter, table: SlotTable, sent_at: np.ndarray, results: SimpleQueue[Any]
    ) -> None:
        self.work = work
        self._writer, self._table, self._sent_at, self._results = writer, table, sent_at, results
        self._first = work.slots.start
        self._requests: SimpleQueue[Any] = SimpleQueue()
        self._envpool: Any = None
        self._sending = threading.Lock()
        # EnvPool reads ids and actions when it gets to them, so they have to live until the row is back.
        self._in_use: list[Any] = [None] * len(work.slots)
        self._thread = threading.Thread(target=self._run, name="envpool", daemon=True)
        self._thread.start()

    def launch(self, slots: np.ndarray, actions: np.ndarray) -> None:
        """Begin a step of `slots` (ascending). `actions` belongs to the engine from here on."""
        ids = (slots - self._first).astype(np.int32)
        if not self.work.task.batch_size:
            self._requests.put((ids, actions))
            return
        for env in ids.tolist():
            self._in_use[env] = (ids, actions)
        self._requests.put(len(ids))  # before they are sent: a row that comes back has been announced
        with self._sending:
            self._envpool._send([ids, ids, actions])

    def ask_to_stop(self) -> None:
        """The thread ends, and with it the environments, after the step under way."""
        self._requests.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the end. A simulator that hangs is left behind, with the thread that waits for it."""
        self._thread.join(timeout)

    def _run(self) -> None:
        phase = "make"
        try:
            self._envpool = self.work.make()
            phase = "step"
            if self.work.task.batch_size:
                self._one_by_one(self._envpool)
            else:
                self._together(self._envpool)
        except SimulatorError as error:
            self._results.put(error.failure)
        except Exception as error:
            self._fail(error, phase)
        finally:
            self._envpool = None  # its destructor ends its threads

    def _fail(self, error: Exception, phase: str) -> None:
        self._results.put(
            Failure(
                cause=f"{type(error).__name__}: {error}",
                phase=phase,
                envs=tuple(self.work.slots),
                slots=tuple(self.work.slots),
                traceback=traceback.format_exc(),
            )
        )

    def _together(self, envpool: Any) -> None:
        """Synchronous mode: one batch under way at a time, its rows in the order in which they were sent.

        EnvPool numbers the rows of every `send` from zero, so a second one before `recv` would overwrite the first:
        whatever is launched meanwhile waits for its turn.
        """
        first, count, writer = self._first, len(self.work.slots), self._writer
        whole, all_slots = slice(first, first + count), list(self.work.slots)
        start = time.monotonic()
        envpool._reset(np.arange(count, dtype=np.int32))
        writer.first(envpool._recv(), whole)
        self._report(all_slots, whole, time.monotonic() - start, count)
        while (request := self._requests.get()) is not None:
            ids, actions = request
            start = time.monotonic()
            envpool._send([ids, ids, actions])
            state = envpool._recv()
            rows = whole if len(ids) == count else ids.astype(np.int64) + first
            ended = writer.ended(state)
            if len(ended):
                again = ids[ended]
                envpool._reset(again)
                writer.step(state, rows, ended)  # while EnvPool resets
                writer.first(envpool._recv(), again + first)
            else:
                writer.step(state, rows, ended)
            self._report(all_slots if rows is whole else rows.tolist(), rows, time.monotonic() - start, len(ids))

    def _one_by_one(self, envpool: Any) -> None:
        """Asynchronous mode: every row is reported when it is there, in the order in which they are finished."""
        writer = self._writer
        flying = len(self.work.slots)
        resetting = np.ones(flying, bool)
        envpool._reset(np.arange(flying, dtype=np.int32))
        while True:
            while flying <= 0 or not self._requests.empty():
                announced = self._requests.get()
                if announced is None:
                    return
                flying += announced
            state = envpool._recv()
            env = int(state[writer.env_id][0])
            slot = self._first + env
            rows = slice(slot, slot + 1)
            if resetting[env]:
                writer.first(state, rows)
                resetting[env] = False
            else:
                ended = writer.ended(state)
                if len(ended):
                    resetting[env] = True
                    with self._sending:
                        envpool._reset(np.array([env], np.int32))
                writer.step(state, rows, ended)
                if len(ended):
                    continue
            self._report([slot], rows, time.monotonic() - self._sent_at[slot], max(1, flying))
            flying -= 1  # may fall below zero: a row can be back before its announcement was read

    def _report(self, slots: list[int], rows: Rows, seconds: float, flying: int) -> None:
        """Rows are complete. `flying` rows shared the threads for `seconds`: EnvPool does not measure, so their
        simulation time is an estimate."""
        self._table.step_seconds[rows] = seconds * min(self.work.threads, flying) / flying
        self._sent_at[rows] = np.inf
        self._results.put(slots)
