"""A worker process: steps the environments it was given, in the order in which it is told to.

It imports neither PyTorch nor anything that needs it: a worker costs what its simulators cost.
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

from paceline.errors import Failure, UsageError
from paceline.pool import memory
from paceline.pool.channel import Command, Result, ResultWriter, pack_ints, read_commands, unpack_ints
from paceline.pool.heartbeat import IDLE, MAKE, RESET, RESTORE, SAVE, STEP, Heartbeat
from paceline.pool.layout import lay_out
from paceline.pool.protocol import Episode
from paceline.pool.stepper import Stepper, agents_of, make_stepper, spaces_of
from paceline.pool.table import SlotTable

ANNOUNCE_SECONDS = 0.001
"""Finished steps are announced when the job they came with is done, or this long after the last announcement: one
message for many light steps, and no fast environment waits for a slow neighbour. A pool that waits for everybody says
so (`Heartbeat.patience`), and is told of whole jobs only."""

LEFT_TO_THE_POOL = (signal.SIGINT, signal.SIGTERM)
"""Workers ignore these signals: schedulers send them to all processes of a job, and the pool's process decides what to do."""


class Worker:
    def __init__(self, number: int, sender: int, results_fd: int, memory_fd: int) -> None:
        self._number, self._memory_fd = number, memory_fd
        self._results = ResultWriter(results_fd, sender)
        self._envs: dict[int, Any] = {}
        self._steppers: dict[int, Stepper] = {}
        self._heartbeat: Heartbeat | None = None
        self._table: SlotTable | None = None

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
                self._fail(Failure(cause=str(error), phase="usage"))
            except Exception as error:
                self._fail(_failure(error, "worker"))
        for stepper in self._steppers.values():
            with contextlib.suppress(Exception):
                stepper.close()

    @contextlib.contextmanager
    def _busy(self, env: int, phase: int) -> Iterator[float]:
        """Show in the heartbeat what is done with an environment; gives the time at which it begins."""
        heartbeat, number = self._heartbeat, self._number
        assert heartbeat is not None
        start = heartbeat.since[number] = time.monotonic()
        heartbeat.phase[number], heartbeat.env[number] = phase, env
        try:
            yield start
        finally:
            heartbeat.env[number], heartbeat.phase[number] = IDLE, STEP

    def _build(self, payload: bytes) -> None:
        job = pickle.loads(payload)
        if job["nice"]:
            os.nice(job["nice"])
        if job["core"] is not None and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {job["core"]})
        self._factory = pickle.loads(job["factory"])
        start = time.monotonic()
        for env in job["envs"]:
            if not self._make(env):
                return
        first = self._envs[job["envs"][0]]
        report = {"seconds": time.monotonic() - start, "agents": agents_of(first), "spaces": spaces_of(first)}
        self._results.send(Result.BUILT, pickle.dumps(report))

    def _make(self, env: int) -> bool:
        try:
            self._envs[env] = self._factory.make(env)
        except UsageError:
            raise
        except Exception as error:
            self._fail(_failure(error, "make", env))
            return False
        leave_signals_to_the_pool()
        return True

    def _attach(self, payload: bytes) -> None:
        spec, num_workers = pickle.loads(payload)
        self._heartbeat, self._table = lay_out(memory.attach(self._memory_fd), spec, num_workers)
        self._steppers = {env: make_stepper(made, env, self._table) for env, made in self._envs.items()}

    def _remake(self, payload: bytes) -> None:
        (env,) = unpack_ints(payload)
        with self._busy(env, MAKE):
            with contextlib.suppress(Exception):
                self._steppers[env].close()
            if self._make(env):
                assert self._table is not None
                self._steppers[env] = make_stepper(self._envs[env], env, self._table)

    def _reset(self, payload: bytes) -> None:
        for env, seed, episode in pickle.loads(payload):
            with self._busy(env, RESET) as start:
                try:
                    self._steppers[env].reset(seed, episode)
                except Exception as error:
                    self._fail(self._steppers[env].failure(error))
                    continue
                self._note_time(env, time.monotonic() - start)
            self._results.send(Result.READY, pack_ints([env]))
        leave_signals_to_the_pool()

    def _step(self, payload: bytes) -> None:
        heartbeat, steppers, table = self._heartbeat, self._steppers, self._table
        assert heartbeat is not None and table is not None
        number, step_seconds = self._number, table.cells("step_seconds")
        since, current = heartbeat.cells()
        finished: list[int] = []
        episodes: list[Episode] = []
        patience = float(heartbeat.patience[0])
        announced = start = time.monotonic()
        for env in unpack_ints(payload):
            since[number] = start
            current[number] = env
            stepper = steppers[env]
            try:
                if ended := stepper.step():
                    episodes += ended
            except Exception as error:
                self._fail(stepper.failure(error))
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
            if now - announced > patience:
                self._announce(finished, episodes)
                finished, episodes, announced = [], [], now
        current[number] = IDLE
        self._announce(finished, episodes)

    def _announce(self, finished: list[int], episodes: list[Episode]) -> None:
        if episodes:  # first, so that they are known when their slots are received
            # As tuples: pickling a slotted dataclass costs several times its contents.
            plain = [(e.slot, e.episode_return, e.length, e.info) for e in episodes]
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
        self._results.send(Result.STATE, pickle.dumps((request, (states, reasons))))

    def _restore(self, payload: bytes) -> None:
        request, states = pickle.loads(payload)
        for env, state in states.items():
            with self._busy(env, RESTORE):
                self._steppers[env].restore(state)
        self._results.send(Result.RESTORED, pickle.dumps((request, None)))

    def _note_time(self, env: int, seconds: float) -> None:
        assert self._table is not None
        slots = self._steppers[env].slots
        self._table.step_seconds[slots[0] : slots[-1] + 1] = seconds

    def _fail(self, failure: Failure) -> None:
        self._results.send(Result.FAILED, pickle.dumps((failure, self._number)))


def _failure(error: Exception, phase: str, *envs: int) -> Failure:
    text = "".join(traceback.format_exception(error))
    return Failure(cause=f"{type(error).__name__}: {error}", phase=phase, envs=envs, traceback=text)


def leave_signals_to_the_pool() -> None:
    """Do nothing on Ctrl-C and SIGTERM. To be called again after simulators were made: some install handlers of their own.

    SIGTERM gets a handler that does nothing, and no `SIG_IGN`: the simulators' own processes would inherit that, and a simulator that
    ends them by a SIGTERM would wait for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _do_nothing)
    signal.siginterrupt(signal.SIGTERM, False)


def _do_nothing(number: int, frame: object) -> None:
    pass


def main() -> None:
    leave_signals_to_the_pool()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_THE_POOL)  # `launch` has blocked them until here
    number, sender, commands_fd, results_fd, memory_fd, report_fd = map(int, sys.argv[1:])
    for fd in (commands_fd, results_fd, memory_fd, report_fd):
        os.set_inheritable(fd, False)  # a simulator's own processes must not keep our pipes open
    faulthandler.enable(report_fd)
    faulthandler.register(signal.SIGUSR1, report_fd)
    with contextlib.suppress(BrokenPipeError):  # the pool is gone: so are we
        Worker(number, sender, results_fd, memory_fd).run(commands_fd)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(0)  # not through the simulators' own exit handlers, which may hang


if __name__ == "__main__":
    main()
