"""Simulators in worker processes: arrays in shared memory, indices through pipes, nobody waits for the slowest.

                      commands (one pipe per worker): step / reset these environments
    ProcessPool  ----------------------------------------------------------------------->  Worker 0..W-1
        ^   ^                                                                                |     |
        |   +---- results (ONE pipe): these environments are ready, these episodes ended ----+     |
        +-------- SlotTable in shared memory: observations, rewards, flags, actions ---------------+

A worker owns whole environments and steps them one after the other. A dead or hung worker is replaced while the others
go on: its environments start new episodes, whose first rows say `lost`.
"""

from __future__ import annotations

import itertools
import math
import pickle
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np

from paceline.accel.naps import Naps
from paceline.envs.registry import Factory
from paceline.errors import Failure, PacelineError, SimulatorError, UsageError
from paceline.pool import memory
from paceline.pool.budget import RestartBudget
from paceline.pool.channel import Command, Message, Result, pack_ints, unpack_ints
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.health import Health
from paceline.pool.heartbeat import IDLE, PHASES, Heartbeat
from paceline.pool.launch import Crew, WorkerProcess
from paceline.pool.layout import agreed_spec, lay_out, nbytes
from paceline.pool.listening import Listener
from paceline.pool.open_files import require_open_files
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch, named_actions
from paceline.pool.questions import Questions
from paceline.pool.saved_pool import SavedPool, report_unsaved
from paceline.pool.shares import Shares
from paceline.pool.slot_states import SlotBook
from paceline.pool.spaces import check_actions
from paceline.pool.stalls import Stalls
from paceline.pool.streams import Streams
from paceline.pool.table import SlotTable
from paceline.pool.worker import ANNOUNCE_SECONDS
from paceline.telemetry.phases import STARTING, Phases

TEND_SECONDS = 0.5
"""How often workers are looked after while everything goes well; deaths are noticed at once."""


class ProcessPool:
    """A `Pool` over worker processes."""

    can_restore = True

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0, phases: Phases | None = None) -> None:
        """`phases` shows how many environments are made."""
        started = time.monotonic()
        self._config, self._seed = config, seed
        self._phases, self._num_made = phases or Phases(), 0
        self._num_workers = min(config.workers or 1, config.num_envs)
        require_open_files(self._num_workers)
        self._factory = cloudpickle.dumps(factory)
        self._shares = Shares(config.num_envs, self._num_workers, config.groups)
        self._crew = Crew()
        self._finalizer = weakref.finalize(self, self._crew.close)
        self._listener = Listener(self._crew.results_fd)
        self._silence = weakref.finalize(self, self._listener.close)
        self._woken = False
        self._may_be_woken = False
        """Whether anybody has ever used `wake`."""
        self._naps = Naps()
        self._num_heard = 0
        """Messages that said that slots are ready."""
        self._number_of: dict[int, int] = {}  # living workers' numbers, by sender
        self._built: dict[int, dict] = {}  # by worker number; absent while a worker is starting
        self._stalls = Stalls(config)
        self._questions = Questions()
        self._failures: list[Failure] = []
        """Of environments, that nothing has been done about yet."""
        self._fatal: PacelineError | None = None
        """What happened while it could not be raised; the next `recv` does."""
        self._episodes: list[Episode] = []
        self._budget = RestartBudget(config)
        self.health = Health(config.leak_megabytes)
        self._next_tend = 0.0
        self._unpin: weakref.finalize | None = None
        self._is_open = False  # whether the memory is laid out and shared; until then the following do not exist
        self.spec: PoolSpec
        self._book: SlotBook
        self._table: SlotTable
        self._heartbeat: Heartbeat
        self._streams: Streams
        self._patient: bool
        try:
            self._phases.show(STARTING, 0, config.num_envs, "")
            for number in range(self._num_workers):
                self._start(number)
            self._wait_for(lambda: len(self._built) == self._num_workers)
            self._share_memory(factory)
            self.reset(seed)
        except BaseException:
            self.close()
            raise
        self._phases.over(STARTING)
        self.health.start_seconds = time.monotonic() - started

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
        book = self._book
        want = book.wanted(min_slots, group)
        self._be_patient(min_slots is None)
        begin, ready, heard = time.monotonic(), book.num_ready(group), self._num_heard
        deadline = math.inf if timeout is None else begin + timeout
        while (missing := want - book.num_ready(group)) > 0:
            if self._woken:
                self._woken = False
                return self._table.batch(*book.take_none())
            left = deadline - time.monotonic()
            if left <= 0 and deadline != math.inf:
                break
            may_nap = not (self._patient or self._may_be_woken)  # whole jobs are announced, or somebody may wake us
            try:
                self._listen(0.0 if may_nap and self._naps.take(missing, left) else left)
            except PacelineError as error:
                if not self._woken:
                    raise
                self._fatal = error  # whoever woke us may want to stop, and then it does not matter
        self._naps.note(time.monotonic() - begin, book.num_ready(group) - ready, self._num_heard - heard)
        if want == 0:
            self._listen(0.0)
        return self._table.batch(*book.take(max_slots, group, first))

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        book, table = self._book, self._table
        slots, rows = book.check(slots)
        named = named_actions(actions, self.spec.actions)
        checked = [(leaf.name, check_actions(named[leaf.name], leaf, slots)) for leaf in self.spec.actions]
        for name, values in checked:
            table.actions[name][rows] = values
        envs = book.release(slots, rows)
        if self._streams.any_stale:
            envs = self._restart_stale(envs)
        for number, payload in self._shares.packed(envs):
            self._command(number, Command.STEP, payload)

    @property
    def num_in_flight(self) -> int:
        return self._book.num_in_flight

    def wake(self) -> None:
        self._may_be_woken = self._woken = True
        self._listener.ring()

    def _be_patient(self, patient: bool) -> None:
        """Let workers announce only whole jobs while we wait for everybody anyway: every message wakes us up."""
        if patient != self._patient:
            self._patient = patient
            self._heartbeat.patience[0] = math.inf if patient else ANNOUNCE_SECONDS

    def reset(self, seed: int) -> None:
        self._quiesce()
        self._streams.begin(seed)
        self._episodes.clear()
        self._book.launch_all()
        self._woken = False
        for number, envs in enumerate(self._shares.envs_of):
            self._order_resets(number, envs)

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self, timeout: float | None = None) -> bytes:
        held = self._streams.alive(self._book.held_envs())
        states: dict[int, bytes] = {}
        reasons: dict[int, str] = {}
        for part, part_reasons in self._ask(Command.STATE, self._shares.by_worker(held), timeout).values():
            states |= part
            reasons |= part_reasons
        report_unsaved(self.spec.num_slots, self.spec.agents_per_env, states, reasons)
        return SavedPool(
            envs=states,
            table=self._table.snapshot(),
            incarnation=self._streams.incarnation,
            seed=self._streams.seed,
            episodes=self._episodes,
        ).pack()

    def restore(self, state: bytes) -> np.ndarray:
        saved = SavedPool.unpack(state, self.spec.num_envs)
        self._quiesce()
        jobs = {
            number: {env: saved.envs[env] for env in envs}
            for number, envs in self._shares.by_worker(list(saved.envs)).items()
        }
        answered = self._ask(Command.RESTORE, jobs, None)
        self._raise_fatal()
        for number in jobs.keys() - answered.keys():  # it was replaced meanwhile
            for env in jobs[number]:
                del saved.envs[env]
        anew = saved.missing()
        self._table.restore(saved.table)
        self._streams.begin(saved.seed, saved.incarnation)
        self._streams.renew(anew)
        self._episodes = saved.episodes
        self._book.ready_all(saved.envs)
        for number, envs in self._shares.by_worker(anew).items():
            self._order_resets(number, envs)
        return np.array(self._slots_of(tuple(anew)), np.int64)

    @property
    def restarts(self) -> int:
        return self._budget.restarts

    def worker_pids(self) -> list[int]:
        return [worker.pid for worker in self._crew.workers]

    def close(self) -> None:
        if self._unpin is not None:
            self._unpin()
        self._finalizer()
        self._silence()

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---------------------------------------------------------------- starting

    def _start(self, number: int) -> WorkerProcess:
        worker = self._crew.start(number)
        self._number_of[worker.sender] = number
        self._listener.add(worker)
        self._built.pop(number, None)
        cores = available_core_ids()
        job = {
            "factory": self._factory,
            "envs": self._shares.envs_of[number],
            "nice": self._config.nice,
            "core": cores[number % len(cores)] if self._config.affinity else None,
        }
        self._command(number, Command.BUILD, pickle.dumps(job))
        return worker

    def _share_memory(self, factory: Factory) -> None:
        """Learn from the workers what is to be stored, lay out the memory and let everybody attach it."""
        self.spec = agreed_spec(self._built, self._shares, self._config, factory)
        memory.resize(self._crew.memory_fd, nbytes(self.spec, self._num_workers))
        shared = memory.attach(self._crew.memory_fd)
        if self._config.pin_memory:
            self._unpin = weakref.finalize(self, memory.unpin, memory.pin(shared))
            self._unpin.atexit = False
        self._heartbeat, self._table = lay_out(shared, self.spec, self._num_workers)
        self._heartbeat.clear(slice(None))
        self._heartbeat.patience[0] = ANNOUNCE_SECONDS
        self._patient = False
        self._book = SlotBook(self.spec)
        self._book.ready_all()  # nothing is in flight before the first reset
        self._streams = Streams(self._table, self._seed)
        for number in range(self._num_workers):
            self._attach(number)
        self._is_open = True

    def _attach(self, number: int) -> None:
        self._command(number, Command.ATTACH, pickle.dumps((self.spec, self._num_workers)))

    # ---------------------------------------------------------------- talking

    def _command(self, number: int, kind: int, payload: bytes) -> None:
        worker = self._crew.workers[number]
        if not worker.command(kind, payload):
            self._listener.watch_room(worker)

    def _listen(self, seconds: float) -> None:
        """Wait up to `seconds` for news of any kind and take it in; never longer than until the next look-around."""
        messages, died = self._listener.wait(min(seconds, TEND_SECONDS))
        self._take_in(messages)
        if self._failures:
            self._replace_failed()
        for worker in died:
            self._bury(worker)
        now = time.monotonic()
        if now >= self._next_tend:
            self._next_tend = now + TEND_SECONDS
            self._tend(now)

    def _take_in(self, messages: list[Message]) -> None:
        for sender, kind, payload in messages:
            number = self._number_of.get(sender)
            if number is None:
                continue  # said by a worker before it died; its environments have been started anew
            if kind == Result.READY:
                self._book.mark_ready(unpack_ints(payload))
                self._num_heard += 1
            elif kind == Result.EPISODES:
                self._episodes += itertools.starmap(Episode, pickle.loads(payload))
            elif kind == Result.FAILED:
                failure, _ = pickle.loads(payload)
                self._failures.append(replace(failure, worker=number, slots=self._slots_of(failure.envs)))
            elif kind == Result.MADE:
                self._num_made += 1
                if not self._is_open:
                    self._phases.show(STARTING, self._num_made, self._config.num_envs, "")
            elif kind == Result.BUILT:
                self._built[number] = pickle.loads(payload)
                self._crew.guard.note_made(self._crew.workers[number])
            else:
                self._questions.take(number, payload)

    def _wait_for(self, done: Callable[[], bool]) -> None:
        self._raise_fatal()
        while not done():
            self._listen(TEND_SECONDS)

    def _ask(self, kind: int, jobs: Mapping[int, object], timeout: float | None) -> dict[int, Any]:
        """One command to each worker that has a job: the answers of those that gave one in time, and did not die over it.

        Nothing is raised meanwhile: what would be is kept in `_fatal`.
        """
        deadline = time.monotonic() + (self._config.start_timeout_seconds if timeout is None else timeout)
        questions = self._questions
        for number, payload in questions.begin(jobs).items():
            self._command(number, kind, payload)
        while questions.unanswered and (left := deadline - time.monotonic()) > 0:
            try:
                self._listen(left)
            except PacelineError as error:
                self._fatal = self._fatal or error
        questions.give_up()
        return questions.answers

    def _raise_fatal(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    def _quiesce(self) -> None:
        """Wait until nothing is in flight."""
        self._wait_for(lambda: not self._book.in_flight().any())

    # ---------------------------------------------------------------- faults

    def _tend(self, now: float) -> None:
        """Look for workers that died unnoticed, hang, or leak, and after the guardian."""
        self._crew.guard.watch(self._crew.workers)
        in_flight = self._book.in_flight() if self._is_open else np.zeros(self._config.num_envs, bool)
        for worker in list(self._crew.workers):
            if worker.ended:
                continue
            if worker.pidfd is None and worker.exited():
                self._bury(worker)
            elif hung := self._hung(worker, in_flight, now):
                self._bury(worker, hung)
        made = [worker.pid for worker in self._crew.workers if worker.number in self._built and not worker.ended]
        self.health.watch(made, now)

    def _hung(self, worker: WorkerProcess, in_flight: np.ndarray, now: float) -> str:
        """What is wrong with a worker that has made no progress for too long with what it was told; empty if nothing is."""
        number = worker.number
        is_built = number in self._built
        is_asked = number in self._questions.unanswered
        if is_built and not is_asked and not in_flight[self._shares.envs_of[number]].any():
            self._stalls.forget(worker.sender)
            return ""
        return self._stalls.hung(worker.sender, self._heartbeat.progress(number) if is_built else None, now)

    def _bury(self, worker: WorkerProcess, hung: str = "") -> None:
        """A worker is dead, or as good as dead: end it, say so, and start another in its place if the budget allows."""
        while messages := self._listener.read():  # what it still said counts
            self._take_in(messages)
        self._replace_failed()
        number, is_stopped = worker.number, worker.is_stopped()
        report = worker.stack() if hung and not is_stopped else worker.crash_report()
        self._listener.remove(worker)
        ending = self._crew.remove(worker)
        self._stalls.forget(worker.sender)
        self._questions.unanswered.discard(number)
        del self._number_of[worker.sender]
        cause = f"{hung}{', its process is stopped' if is_stopped else ''}" if hung else f"the worker process {ending}"
        failure = self._describe(number, cause, report)
        if not self._is_open:
            raise SimulatorError(failure)
        self._budget.spend(failure)
        self._heartbeat.clear(number)
        envs = self._shares.envs_of[number]
        self._streams.lose(envs)
        self.health.lost_episodes += len(envs)
        self._start(number)
        self._attach(number)
        in_flight = self._book.in_flight()
        self._restart_stale(np.array([env for env in envs if in_flight[env]], np.int64))

    def _describe(self, number: int, cause: str, traceback: str) -> Failure:
        envs = tuple(self._shares.envs_of[number])
        if number not in self._built or not self._is_open:
            phase = "make"
        elif (env := int(self._heartbeat.env[number])) == IDLE:
            phase = "wait"
        else:
            slots = self._slots_of((env,))
            return Failure(
                cause=cause,
                phase=PHASES[self._heartbeat.phase[number]],
                envs=(env,),
                slots=slots,
                worker=number,
                seed=self._streams.seed_of(env),
                episode=int(self._table.episode[slots[0]]),
                step=int(self._table.step[slots[0]]),
                traceback=traceback,
            )
        slots = self._slots_of(envs)
        return Failure(cause=cause, phase=phase, envs=envs, slots=slots, worker=number, traceback=traceback)

    def _replace_failed(self) -> None:
        """Environments whose own code failed, in workers that are well."""
        while self._failures:
            failure = self._failures.pop(0)
            if failure.phase == "usage":
                raise UsageError(failure.cause)
            if failure.phase in ("make", "worker") or self._config.on_error == "stop":
                raise SimulatorError(failure)
            self._budget.spend(failure)
            (env,), number = failure.envs, failure.worker
            assert number is not None
            self._streams.renew([env])
            self.health.lost_episodes += 1
            self._command(number, Command.REMAKE, pack_ints([env]))
            self._book.mark_lost(env)
            self._order_resets(number, [env])

    def _restart_stale(self, envs: np.ndarray) -> np.ndarray:
        """Of `envs`, which were just sent, start those anew whose worker was replaced; the others are returned."""
        lost, others = self._streams.take_lost(envs)
        for env in lost:
            self._book.mark_lost(env)
            self._order_resets(int(self._shares.worker_of[env]), [env])
        return others

    def _order_resets(self, number: int, envs: list[int]) -> None:
        """New episodes. A worker that is still starting gets to them after that."""
        self._command(number, Command.RESET, pickle.dumps(self._streams.jobs(envs)))

    def _slots_of(self, envs: tuple[int, ...]) -> tuple[int, ...]:
        agents = self.spec.agents_per_env if self._is_open else 1
        return tuple(env * agents + agent for env in envs for agent in range(agents))
