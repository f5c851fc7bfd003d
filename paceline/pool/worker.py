"""A worker process: steps its environments in the order of the pool's commands.

It does not import PyTorch, so a worker costs what its simulators cost.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

from paceline.errors import SimulatorFailure, UsageError
from paceline.pool import memory
from paceline.pool.channel import Command, Result, ResultWriter, pack_ints, read_commands, unpack_ints
from paceline.pool.distinct import require_distinct
from paceline.pool.env_state import UnreadableState
from paceline.pool.heartbeat import IDLE, MAKE, RESET, RESTORE, SAVE, STEP, Heartbeat
from paceline.pool.protocol import Episode
from paceline.pool.shapes import env_shape
from paceline.pool.stepper import Stepper, failure_of, make_stepper
from paceline.pool.table import SlotTable

ANNOUNCE_SECONDS = 0.001
"""Longest time between two announcements of finished steps within a job; a job's end is announced too. Many light steps
make one message, and no fast environment waits for a slow neighbour. A pool that waits for all slots changes the time
(`Heartbeat.announce_seconds`), because it needs no announcements before the end of a job."""

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Schedulers send these signals to all processes of a job, and the pool's process decides what to do."""


class Worker:
    def __init__(self, number: int, sender: int, results_fd: int, memory_fd: int) -> None:
        self._number, self._memory_fd = number, memory_fd
        self._results = ResultWriter(results_fd, sender)
        self._envs: dict[int, Any] = {}
        self._steppers: dict[int, Stepper] = {}
        self._heartbeat: Heartbeat
        self._table: SlotTable

    def run(self, commands_fd: int) -> None:
        handlers = {
            Command.BUILD: self._build,
            Command.ATTACH: self._attach,
            Command.RESET: self._reset,
            Command.STEP: self._step,
            Command.REMAKE: self._remake,
            Command.STATE: self._state,
            Command.RESTORE: self._restore,
        }
        for kind, payload in read_commands(commands_fd):
            if kind == Command.CLOSE:
                break
            try:
                handlers[kind](payload)
            except UsageError as error:
                self._fail(SimulatorFailure(cause=str(error), phase="usage"))
            except Exception as error:
                self._fail(_failure(error, "worker"))
        for stepper in self._steppers.values():
            with contextlib.suppress(Exception):
                stepper.close()

    def _build(self, payload: bytes) -> None:
        job = pickle.loads(payload)
        if job["nice"]:
            os.nice(job["nice"])
        if job["core"] is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {job["core"]})
        self._factory = pickle.loads(job["factory"])
        for env in job["envs"]:
            if not self._make(env):
                return
            self._results.send(Result.MADE, b"")
        require_distinct(self._envs.values())
        self._results.send(Result.BUILT, pickle.dumps(env_shape(self._envs[job["envs"][0]])))

    def _make(self, env: int) -> bool:
        try:
            self._envs[env] = self._factory.make(env)
        except UsageError:
            raise
        except Exception as error:
            self._fail(_failure(error, "make", env))
            return False
        ignore_signals()
        return True

    def _attach(self, payload: bytes) -> None:
        _, self._heartbeat, self._table = memory.attach(self._memory_fd, *pickle.loads(payload))
        self._steppers = {env: make_stepper(made, env, self._table) for env, made in self._envs.items()}

    def _remake(self, payload: bytes) -> None:
        (env,) = unpack_ints(payload)
        with self._busy(env, MAKE):
            with contextlib.suppress(Exception):
                self._steppers[env].close()
            if self._make(env):
                require_distinct(self._envs.values())
                self._steppers[env] = make_stepper(self._envs[env], env, self._table)

    def _reset(self, payload: bytes) -> None:
        for env, seed, episode in pickle.loads(payload):
            with self._busy(env, RESET) as start:
                try:
                    self._steppers[env].reset(seed, episode)
                except Exception as error:
                    self._fail(failure_of(self._steppers[env], error))
                    continue
                self._note_time(env, time.monotonic() - start)
            self._results.send(Result.READY, pack_ints([env]))
        ignore_signals()

    def _step(self, payload: bytes) -> None:
        heartbeat, steppers = self._heartbeat, self._steppers
        number, step_seconds = self._number, self._table.cells("step_seconds")
        since, current = heartbeat.cells()
        finished: list[int] = []
        episodes: list[Episode] = []
        announce_seconds = float(heartbeat.announce_seconds[0])
        announced = start = time.monotonic()
        for env in unpack_ints(payload):
            since[number] = start
            current[number] = env
            stepper = steppers[env]
            try:
                if ended := stepper.step():
                    episodes += ended
            except Exception as error:
                self._fail(failure_of(stepper, error))
                start = time.monotonic()
                continue
            now = time.monotonic()
            slots = stepper.slots
            if len(slots) == 1:
                step_seconds[slots[0]] = now - start
            else:
                self._note_time(env, now - start)
            start = now
            finished.append(env)
            if now - announced > announce_seconds:
                self._announce(finished, episodes)
                finished, episodes, announced = [], [], now
        current[number] = IDLE
        self._announce(finished, episodes)

    def _announce(self, finished: list[int], episodes: list[Episode]) -> None:
        if episodes:  # first, so that the pool knows them when it delivers their slots
            # As tuples, because pickling a slotted dataclass costs several times its contents.
            plain = [(e.slot, e.episode_return, e.length, e.info, e.match) for e in episodes]
            self._results.send(Result.EPISODES, pickle.dumps(plain, pickle.HIGHEST_PROTOCOL))
        if finished:
            self._results.send(Result.READY, pack_ints(finished))

    def _state(self, payload: bytes) -> None:
        request, envs = pickle.loads(payload)
        states: dict[int, bytes] = {}
        reasons: dict[int, str] = {}
        for env in envs:
            with self._busy(env, SAVE):
                try:
                    states[env] = self._steppers[env].state()
                except Exception as error:
                    reasons[env] = str(error)
        self._results.send(Result.ANSWER, pickle.dumps((request, (states, reasons))))

    def _restore(self, payload: bytes) -> None:
        request, states = pickle.loads(payload)
        unreadable: dict[int, str] = {}
        for env, state in states.items():
            with self._busy(env, RESTORE):
                try:
                    self._steppers[env].restore(state)
                except UnreadableState as error:
                    unreadable[env] = str(error)
        self._results.send(Result.ANSWER, pickle.dumps((request, unreadable)))

    @contextlib.contextmanager
    def _busy(self, env: int, phase: int) -> Iterator[float]:
        """Show the current operation in the heartbeat. Yields its start time."""
        heartbeat, number = self._heartbeat, self._number
        start = heartbeat.since[number] = time.monotonic()
        heartbeat.phase[number], heartbeat.env[number] = phase, env
        try:
            yield start
        finally:
            heartbeat.env[number], heartbeat.phase[number] = IDLE, STEP

    def _note_time(self, env: int, seconds: float) -> None:
        slots = self._steppers[env].slots
        self._table.step_seconds[slots[0] : slots[-1] + 1] = seconds

    def _fail(self, failure: SimulatorFailure) -> None:
        self._results.send(Result.FAILED, pickle.dumps(failure))


def _failure(error: Exception, phase: str, *envs: int) -> SimulatorFailure:
    text = "".join(traceback.format_exception(error))
    return SimulatorFailure(cause=f"{type(error).__name__}: {error}", phase=phase, envs=envs, traceback=text)


def ignore_signals() -> None:
    """Ignore Ctrl-C and SIGTERM. Repeated after simulators are made, because some install handlers of their own.

    SIGTERM gets a handler that does nothing. The simulators' own processes would inherit SIG_IGN, and a simulator that
    ends them by a SIGTERM would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.siginterrupt(signal.SIGTERM, False)


def main() -> None:
    ignore_signals()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)  # the pool has blocked them until here
    number, sender, commands_fd, results_fd, memory_fd, report_fd = map(int, sys.argv[1:])
    for fd in (commands_fd, results_fd, memory_fd, report_fd):
        os.set_inheritable(fd, False)  # a simulator's own processes must not keep our pipes open
    faulthandler.enable(report_fd)
    faulthandler.register(signal.SIGUSR1, report_fd)
    with contextlib.suppress(BrokenPipeError):  # the pool has ended
        Worker(number, sender, results_fd, memory_fd).run(commands_fd)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            if stream is not None:  # it is closed
                stream.flush()
    os._exit(0)  # without the simulators' own exit handlers, which may hang


if __name__ == "__main__":
    main()
