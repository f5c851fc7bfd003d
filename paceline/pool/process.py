"""Simulators in worker processes: arrays in shared memory, indices through pipes, no waiting for the slowest.

                      commands (one pipe per worker): step / reset these environments
    ProcessPool  ----------------------------------------------------------------------->  Worker 0..W-1
        ^   ^                                                                                |     |
        |   +---- results (ONE pipe): these environments are ready, these episodes ended ----+     |
        +-------- SlotTable in shared memory: observations, rewards, flags, actions ---------------+

A worker owns whole environments and steps them one after the other. The pool replaces a dead or hung worker while the
others continue. The worker's environments start new episodes, whose first rows are marked `lost`.
"""

from __future__ import annotations

import itertools
import math
import pickle
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from paceline.accel.naps import Naps
from paceline.envs.factory import Factory
from paceline.errors import PacelineError, SimulatorError, SimulatorFailure, UsageError
from paceline.pool import memory
from paceline.pool.assignment import Assignment
from paceline.pool.budget import RestartBudget
from paceline.pool.build_jobs import build_job, packed_factory
from paceline.pool.channel import Command, Message, Requests, Result, pack_ints, unpack_ints
from paceline.pool.config import PoolConfig
from paceline.pool.heartbeat import IDLE, PHASES, HangDetector, Heartbeat
from paceline.pool.launch import WorkerProcesses
from paceline.pool.leaks import LeakDetector
from paceline.pool.protocol import Array, Episode, Pool, PoolSpec, StepBatch
from paceline.pool.saved_pool import SavedPool, pack_pool
from paceline.pool.seeds import EnvSeeds
from paceline.pool.shapes import EnvShape, make_spec
from paceline.pool.slot_states import SlotStates
from paceline.pool.table import SlotTable
from paceline.pool.worker import ANNOUNCE_SECONDS
from paceline.pool.worker_process import WorkerProcess, require_open_files
from paceline.telemetry.phases import STARTING, Phases

CHECK_SECONDS = 0.5
"""Time between two checks for hung and leaking workers. Deaths are noticed at once."""


class ProcessPool(Pool):
    """A `Pool` over worker processes."""

    can_restore = True

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0, phases: Phases | None = None) -> None:
        """`phases` shows how many environments are made."""
        self._config, self._phases = config, phases or Phases()
        num_workers = min(config.workers or 1, config.num_envs)
        require_open_files(num_workers)
        self._factory = packed_factory(factory)
        self._assignment = Assignment(config.num_envs, num_workers, config.groups)
        self._crew = WorkerProcesses()
        self._finalizer = weakref.finalize(self, self._crew.close)
        self._unpin: weakref.finalize | None = None
        self._shapes: dict[int, EnvShape] = {}  # by worker number; absent while a worker makes its environments
        self._num_made = 0
        self._episodes: list[Episode] = []
        self._requests = Requests()
        self._failures: list[SimulatorFailure] = []  # of environments, not yet handled
        self._fatal: PacelineError | None = None  # an error that the next `recv` raises
        self._budget, self._hangs = RestartBudget(config), HangDetector(config)
        self._leaks, self._next_check = LeakDetector(config.leak_megabytes), 0.0
        self._naps, self._num_announcements = Naps(), 0
        self._woken = self._wake_used = self._whole_jobs = False
        self._is_open = False  # whether the shared memory exists; until then the following attributes do not
        self.spec: PoolSpec
        self._slots: SlotStates
        self._table: SlotTable
        self._heartbeat: Heartbeat
        self._seeds: EnvSeeds
        try:
            self._phases.show(STARTING, 0, config.num_envs, "")
            for number in range(num_workers):
                self._start(number)
            self._wait_until(lambda: len(self._shapes) == num_workers)
            self._share_memory(factory.frameskip, seed)
            self.reset(seed)
        except BaseException:
            self.close()
            raise
        self._phases.end(STARTING)

    # ---------------------------------------------------------------- the protocol

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        self._raise_fatal()
        slots = self._slots
        want = slots.wanted(min_slots, max_slots, group)
        self._announce_whole_jobs(min_slots is None)
        begin, ready, heard = time.monotonic(), slots.num_ready(group), self._num_announcements
        deadline = math.inf if timeout is None else begin + timeout
        while (missing := slots.num_missing(want, group)) > 0:
            if self._woken:
                self._woken = False
                return self._table.batch(*slots.take_none())
            left = deadline - time.monotonic()
            if left <= 0 and deadline != math.inf:
                break
            may_nap = not (self._whole_jobs or self._wake_used)  # a nap saves no message, or would delay `wake`
            try:
                self._listen(0.0 if may_nap and self._naps.take(missing, left) else left)
            except PacelineError as error:
                if not self._woken:
                    raise
                self._fatal = error  # the caller that woke us may stop now, and then the error does not matter
        self._naps.note(time.monotonic() - begin, slots.num_ready(group) - ready, self._num_announcements - heard)
        if want == 0:
            self._listen(0.0)
        return self._table.batch(*slots.take(max_slots, group, first))

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        slots, rows = self._slots.check(slots)
        self._table.write_actions(actions, slots, rows)
        envs = self._slots.release(slots, rows)
        if self._seeds.any_lost:
            envs = self._reset_lost(envs)
        for number, payload in self._assignment.packed(envs):
            self._crew.command(number, Command.STEP, payload)

    @property
    def num_in_flight(self) -> int:
        return self._slots.num_in_flight

    def wake(self) -> None:
        self._wake_used = self._woken = True
        self._crew.listener.wake()

    def reset(self, seed: int) -> None:
        self._wait_until_idle()
        self._seeds.begin(seed)
        self._episodes.clear()
        self._slots.restart()
        self._woken = False
        for number, envs in enumerate(self._assignment.envs_of):
            self._order_resets(number, envs)

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def set_reward_weights(self, slots: Array, weights: Array) -> None:
        self._table.set_reward_weights(slots, weights)

    @property
    def restarts(self) -> int:
        return self._budget.restarts

    def state(self, timeout: float | None = None) -> bytes:
        held = self._seeds.not_lost(self._slots.held_envs())
        states: dict[int, bytes] = {}
        reasons: dict[int, str] = {}
        for part, part_reasons in self._ask(Command.STATE, self._assignment.by_worker(held), timeout).values():
            states |= part
            reasons |= part_reasons
        return pack_pool(states, reasons, self._table, self._seeds, self._episodes)

    def restore(self, state: bytes) -> np.ndarray:
        saved = SavedPool.unpack(state, self.spec.num_envs)
        self._wait_until_idle()
        by_worker = self._assignment.by_worker(list(saved.envs))
        jobs = {number: {env: saved.envs[env] for env in envs} for number, envs in by_worker.items()}
        answers = self._ask(Command.RESTORE, jobs, None)
        self._raise_fatal()
        for number in jobs.keys() - answers.keys():  # a worker that was replaced meanwhile
            for env in jobs[number]:
                del saved.envs[env]
        saved.leave_out({env: reason for answer in answers.values() for env, reason in answer.items()})
        missing = saved.put_back(self._table, self._seeds)
        self._episodes = saved.episodes
        self._slots.restart(saved.envs)
        for number, envs in self._assignment.by_worker(missing).items():
            self._order_resets(number, envs)
        return np.array(self._slots_of(missing), np.int64)

    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in self._crew.workers]

    def close(self) -> None:
        if self._unpin is not None:
            self._unpin()
        self._finalizer()

    # ---------------------------------------------------------------- starting

    def _start(self, number: int) -> None:
        self._crew.start(number)
        self._shapes.pop(number, None)
        job = build_job(self._factory, self._assignment.envs_of[number], self._config, number)
        self._crew.command(number, Command.BUILD, job)
        if self._is_open:
            self._attach(number)

    def _share_memory(self, frameskip: int, seed: int) -> None:
        """Lay out the shared memory for the environments that the workers made, and attach it everywhere."""
        num_workers = len(self._shapes)
        shapes = {envs[0]: self._shapes[number] for number, envs in enumerate(self._assignment.envs_of)}
        self.spec = make_spec(shapes, self._config, frameskip, num_workers)
        memory.resize(self._crew.memory_fd, self.spec, num_workers)
        shared, self._heartbeat, self._table = memory.attach(self._crew.memory_fd, self.spec, num_workers)
        self._table.reset_reward_weights()
        if self._config.pin_memory:
            self._unpin = weakref.finalize(self, memory.unpin, memory.pin(shared))
            self._unpin.atexit = False
        self._heartbeat.clear(slice(None))
        self._heartbeat.announce_seconds[0] = ANNOUNCE_SECONDS
        self._slots = SlotStates(self.spec, self._table.due)
        self._slots.restart(range(self.spec.num_envs))  # nothing is in flight before the first reset
        self._seeds = EnvSeeds(self._table, seed)
        for number in range(num_workers):
            self._attach(number)
        self._is_open = True

    def _attach(self, number: int) -> None:
        self._crew.command(number, Command.ATTACH, pickle.dumps((self.spec, len(self._crew.workers))))

    # ---------------------------------------------------------------- messages

    def _listen(self, seconds: float) -> None:
        """Wait up to `seconds`, but not past the next check, for messages and deaths, and handle them."""
        messages, died = self._crew.listener.wait(min(seconds, CHECK_SECONDS))
        self._handle(messages)
        if self._failures:
            self._replace_failed_envs()
        for worker in died:
            self._replace_worker(worker)
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
            self._check_workers(now)

    def _handle(self, messages: list[Message]) -> None:
        for sender, kind, payload in messages:
            number = self._crew.number_of.get(sender)
            if number is None:
                continue  # its sender has been replaced, and the environments have been reset
            if kind == Result.READY:
                self._slots.mark_ready(unpack_ints(payload))
                self._num_announcements += 1
            elif kind == Result.EPISODES:
                self._episodes += itertools.starmap(Episode, pickle.loads(payload))
            elif kind == Result.FAILED:
                failure = pickle.loads(payload)
                self._failures.append(replace(failure, worker=number, slots=self._slots_of(failure.envs)))
            elif kind == Result.MADE:
                self._num_made += 1
                if not self._is_open:
                    self._phases.show(STARTING, self._num_made, self._config.num_envs, "")
            elif kind == Result.BUILT:
                self._shapes[number] = pickle.loads(payload)
                self._crew.guard.note_memory(self._crew.workers[number].mark)
            else:
                self._requests.take(number, payload)

    def _ask(self, kind: int, jobs: Mapping[int, object], timeout: float | None) -> dict[int, Any]:
        """Send one request to each worker with a job. Returns the answers of workers that answered in time.

        An error meanwhile is kept for the next `recv`.
        """
        deadline = time.monotonic() + (self._config.start_timeout_seconds if timeout is None else timeout)
        requests = self._requests
        for number, payload in requests.begin(jobs).items():
            self._crew.command(number, kind, payload)
        while requests.unanswered and (left := deadline - time.monotonic()) > 0:
            try:
                self._listen(left)
            except PacelineError as error:
                self._fatal = self._fatal or error
        requests.unanswered.clear()
        return requests.answers

    def _order_resets(self, number: int, envs: list[int]) -> None:
        """Start new episodes of `envs`. A worker that is still starting does it afterwards."""
        self._crew.command(number, Command.RESET, pickle.dumps(self._seeds.reset_jobs(envs)))

    def _announce_whole_jobs(self, whole: bool) -> None:
        """While the pool waits for all slots, workers announce whole jobs, since every message wakes the pool."""
        if whole != self._whole_jobs:
            self._whole_jobs = whole
            self._heartbeat.announce_seconds[0] = math.inf if whole else ANNOUNCE_SECONDS

    def _wait_until(self, done: Callable[[], bool]) -> None:
        self._raise_fatal()
        while not done():
            self._listen(CHECK_SECONDS)

    def _wait_until_idle(self) -> None:
        self._wait_until(lambda: not self._slots.in_flight().any())

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    # ---------------------------------------------------------------- faults

    def _check_workers(self, now: float) -> None:
        """Find workers that died unnoticed, hang or leak, and a dead guardian."""
        crew = self._crew
        crew.guard.check(crew.workers)
        in_flight = self._slots.in_flight() if self._is_open else np.zeros(self._config.num_envs, bool)
        for worker in list(crew.workers):
            if worker.ended:
                continue
            if worker.pidfd is None and worker.exited():
                self._replace_worker(worker)
            elif hung := self._why_hung(worker, in_flight, now):
                self._replace_worker(worker, hung)
        self._leaks.check([w.pid for w in crew.workers if w.number in self._shapes and not w.ended], now)

    def _why_hung(self, worker: WorkerProcess, in_flight: np.ndarray, now: float) -> str:
        """Why a worker counts as hung, or ""."""
        number = worker.number
        built, asked = number in self._shapes, number in self._requests.unanswered
        if built and not asked and not in_flight[self._assignment.envs_of[number]].any():
            self._hangs.forget(worker.sender)  # it has nothing to do
            return ""
        return self._hangs.check(worker.sender, self._heartbeat.progress(number) if built else None, now)

    def _replace_worker(self, worker: WorkerProcess, hung: str = "") -> None:
        """End a dead or hung worker and start another in its place, if the budget allows."""
        while messages := self._crew.listener.read():  # results that it sent before its death count
            self._handle(messages)
        self._replace_failed_envs()
        number, is_stopped = worker.number, worker.is_stopped()
        report = worker.stack() if hung and not is_stopped else worker.report()
        ending = self._crew.remove(worker)
        self._hangs.forget(worker.sender)
        self._requests.unanswered.discard(number)
        cause = f"{hung}{', its process is stopped' if is_stopped else ''}" if hung else f"the worker process {ending}"
        failure = self._describe(number, cause, report)
        if not self._is_open:
            raise SimulatorError(failure)
        self._budget.spend(failure)
        self._heartbeat.clear(number)
        envs = self._assignment.envs_of[number]
        self._seeds.mark_lost(envs)
        self._start(number)
        in_flight = self._slots.in_flight()
        self._reset_lost(np.array([env for env in envs if in_flight[env]], np.int64))

    def _describe(self, number: int, cause: str, stack: str) -> SimulatorFailure:
        """What a dead or hung worker was doing."""
        envs = tuple(self._assignment.envs_of[number])
        slots = self._slots_of(envs)
        failure = SimulatorFailure(cause=cause, phase="make", envs=envs, slots=slots, worker=number, traceback=stack)
        if number not in self._shapes or not self._is_open:
            return failure
        if (env := int(self._heartbeat.env[number])) == IDLE:
            return replace(failure, phase="wait")
        slots = self._slots_of([env])
        episode, step = int(self._table.episode[slots[0]]), int(self._table.step[slots[0]])
        phase, seed = PHASES[self._heartbeat.phase[number]], self._seeds.seed_of(env)
        return replace(failure, phase=phase, envs=(env,), slots=slots, seed=seed, episode=episode, step=step)

    def _replace_failed_envs(self) -> None:
        """Replace environments whose own code failed in a healthy worker, or end the run."""
        while self._failures:
            failure = self._failures.pop(0)
            if failure.phase == "usage":
                raise UsageError(failure.cause)
            if failure.phase in ("make", "worker") or self._config.on_error == "stop":
                raise SimulatorError(failure)
            self._budget.spend(failure)
            (env,), number = failure.envs, failure.worker
            assert number is not None
            self._seeds.renew([env])
            self._crew.command(number, Command.REMAKE, pack_ints([env]))
            self._slots.mark_lost(env)
            self._order_resets(number, [env])

    def _reset_lost(self, envs: np.ndarray) -> np.ndarray:
        """Reset those of `envs` whose worker was replaced. Returns the others."""
        lost, others = self._seeds.take_lost(envs)
        for env in lost:
            self._slots.mark_lost(env)
            self._order_resets(int(self._assignment.worker_of[env]), [env])
        return others

    def _slots_of(self, envs: Iterable[int]) -> tuple[int, ...]:
        agents = self.spec.agents_per_env if self._is_open else 1
        return tuple(env * agents + agent for env in envs for agent in range(agents))
