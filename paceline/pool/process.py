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
import logging
import math
import pickle
import select
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace

import cloudpickle
import numpy as np

from paceline.envs.registry import Factory
from paceline.errors import Failure, SimulatorError, UsageError
from paceline.pool import memory
from paceline.pool.alarm import Alarm
from paceline.pool.book import SlotBook
from paceline.pool.channel import Command, Message, Result, ResultReader, pack_ints, unpack_ints
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.health import Health
from paceline.pool.launch import Crew, WorkerProcess
from paceline.pool.naps import Naps
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch, named_actions
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import check_actions
from paceline.pool.table import SlotTable
from paceline.pool.worker import ANNOUNCE_SECONDS, IDLE, Heartbeat

log = logging.getLogger(__name__)

TEND_SECONDS = 0.5
"""How often workers are looked after while everything goes well; deaths are noticed at once."""


class ProcessPool:
    """A `Pool` over worker processes."""

    can_restore = True

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0) -> None:
        started = time.monotonic()
        self._config, self._seed = config, seed
        self._num_workers = min(config.workers or 1, config.num_envs)
        self._factory = cloudpickle.dumps(factory)
        self._envs_of = _assign(config.num_envs, self._num_workers, config.groups)
        self._crew = Crew()
        self._finalizer = weakref.finalize(self, self._crew.close)
        self._results = ResultReader(self._crew.results_fd)
        self._poll = select.poll()
        self._poll.register(self._crew.results_fd, select.POLLIN)
        self._alarm, self._woken = Alarm(), False
        self._may_be_woken = False
        """Whether anybody has ever used `wake`."""
        self._naps = Naps()
        self._num_heard = 0
        """Messages that said that slots are ready."""
        self._silence = weakref.finalize(self, self._alarm.close)
        self._poll.register(self._alarm.fd, select.POLLIN)
        self._by_pidfd: dict[int, WorkerProcess] = {}
        self._number_of: dict[int, int] = {}  # living workers' numbers, by sender
        self._built: dict[int, dict] = {}  # by worker number; absent while a worker is starting
        self._starting_since: dict[int, float] = {}
        self._replies: dict[int, object] = {}
        self._episodes: list[Episode] = []
        self.health = Health(config.leak_megabytes)
        self._next_tend = 0.0
        self._unpin: weakref.finalize | None = None
        self._is_open = False  # whether the memory is laid out and shared; until then the following do not exist
        self.spec: PoolSpec
        self._book: SlotBook
        self._table: SlotTable
        self._heartbeat: Heartbeat
        self._incarnation: np.ndarray
        self._stale: np.ndarray
        self._patient: bool
        self._known_shares: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        self._worker_of = np.empty(config.num_envs, np.int64)
        for number, envs in enumerate(self._envs_of):
            self._worker_of[envs] = number
        try:
            for number in range(self._num_workers):
                self._start(number)
            self._wait_for(lambda: len(self._built) == self._num_workers)
            self._share_memory(factory)
            self.reset(seed)
        except BaseException:
            self.close()
            raise
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
            self._listen(0.0 if may_nap and self._naps.take(missing, left) else left)
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
        if self._any_stale:
            envs = self._restart_stale(envs)
        for number, payload in self._shares(envs):
            self._crew.workers[number].command(Command.STEP, payload)

    @property
    def num_in_flight(self) -> int:
        return self._book.num_in_flight

    def wake(self) -> None:
        self._may_be_woken = True
        self._alarm.ring()

    def _be_patient(self, patient: bool) -> None:
        """Let workers announce only whole jobs while we wait for everybody anyway: every message wakes us up."""
        if patient != self._patient:
            self._patient = patient
            self._heartbeat.patience[0] = math.inf if patient else ANNOUNCE_SECONDS

    def _shares(self, envs: np.ndarray) -> list[tuple[int, bytes]]:
        """Which workers are to step which of `envs`. Runs of environments, as groups are, are looked up."""
        if len(envs) == 0:
            return []
        first, count = int(envs[0]), len(envs)
        is_run = count == 1 or (int(envs[-1]) - first + 1 == count and bool((envs[1:] > envs[:-1]).all()))
        if is_run and (known := self._known_shares.get((first, count))) is not None:
            return known
        by_worker: dict[int, list[int]] = {}
        for env, number in zip(envs.tolist(), self._worker_of[envs].tolist(), strict=True):
            by_worker.setdefault(number, []).append(env)
        shares = [(number, pack_ints(jobs)) for number, jobs in by_worker.items()]
        if is_run:
            self._known_shares[first, count] = shares
        return shares

    def reset(self, seed: int) -> None:
        self._quiesce()
        self._seed = seed
        self._incarnation[:] = 0
        self._episodes.clear()
        self._book.launch_all()
        self._stale[:] = False
        self._any_stale = False
        self._woken = False
        for number, envs in enumerate(self._envs_of):
            jobs = [(env, env_seed(seed, env), 0) for env in envs]
            self._crew.workers[number].command(Command.RESET, pickle.dumps(jobs))

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> bytes:
        if not self._book.all_held():
            raise UsageError("a pool's state can be taken only while the caller holds all slots")
        states: dict[int, bytes] = {}
        for part in self._ask(Command.STATE, [b""] * self._num_workers):
            if isinstance(part, str):
                raise UsageError(part)
            states |= part
        return pickle.dumps(
            {
                "envs": states,
                "table": self._table.snapshot(),
                "incarnation": self._incarnation,
                "seed": self._seed,
                "episodes": self._episodes,
            }
        )

    def restore(self, state: bytes) -> None:
        saved = pickle.loads(state)
        if len(saved["envs"]) != self.spec.num_envs:
            raise UsageError(f"the saved pool had {len(saved['envs'])} environments; this one has {self.spec.num_envs}")
        self._quiesce()
        self._ask(Command.RESTORE, [pickle.dumps({env: saved["envs"][env] for env in envs}) for envs in self._envs_of])
        self._table.restore(saved["table"])
        self._incarnation, self._seed, self._episodes = saved["incarnation"], saved["seed"], saved["episodes"]
        self._book.ready_all()

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
        if worker.pidfd is not None:
            self._poll.register(worker.pidfd, select.POLLIN)
            self._by_pidfd[worker.pidfd] = worker
        self._built.pop(number, None)
        self._starting_since[number] = time.monotonic()
        cores = available_core_ids()
        job = {
            "factory": self._factory,
            "envs": self._envs_of[number],
            "nice": self._config.nice,
            "core": cores[number % len(cores)] if self._config.affinity else None,
        }
        worker.command(Command.BUILD, pickle.dumps(job))
        return worker

    def _share_memory(self, factory: Factory) -> None:
        """Learn from the workers what is to be stored, lay out the memory and let everybody attach it."""
        first = self._built[0]
        for number, built in self._built.items():
            if (built["spaces"], built["agents"]) != (first["spaces"], first["agents"]):
                raise UsageError(
                    f"environments of one pool must have equal spaces: environment {self._envs_of[0][0]} has "
                    f"{first['spaces']}, environment {self._envs_of[number][0]} has {built['spaces']}"
                )
        observation_space, action_space = first["spaces"]
        self.spec = PoolSpec(
            observation_space=observation_space,
            action_space=action_space,
            num_envs=self._config.num_envs,
            agents_per_env=first["agents"],
            frameskip=factory.frameskip,
            num_groups=self._config.groups,
            envs_per_worker=self._config.num_envs // self._num_workers,
        )
        head = Heartbeat.nbytes(self._num_workers)
        memory.resize(self._crew.memory_fd, head + SlotTable.nbytes(self.spec))
        shared = memory.attach(self._crew.memory_fd)
        if self._config.pin_memory:
            self._unpin = weakref.finalize(self, memory.unpin, memory.pin(shared))
            self._unpin.atexit = False
        self._heartbeat = Heartbeat(shared, self._num_workers)
        self._heartbeat.env[:] = IDLE
        self._heartbeat.patience[0] = ANNOUNCE_SECONDS
        self._patient = False
        self._table = SlotTable(self.spec, memoryview(shared)[head:])
        self._book = SlotBook(self.spec)
        self._book.ready_all()  # nothing is in flight before the first reset
        num_envs = self.spec.num_envs
        self._incarnation = np.zeros(num_envs, np.int64)
        self._stale = np.zeros(num_envs, bool)  # the worker was replaced: what the caller knows exists no more
        self._any_stale = False
        self._pending_resets: dict[int, list[int]] = {}  # by worker number, until it is built
        for worker in self._crew.workers:
            self._attach(worker)
        self._is_open = True

    def _attach(self, worker: WorkerProcess) -> None:
        worker.command(Command.ATTACH, pickle.dumps((self.spec, self._num_workers)))

    # ---------------------------------------------------------------- listening

    def _listen(self, seconds: float) -> None:
        """Wait up to `seconds` for news of any kind and take it in; never longer than until the next look-around."""
        wait = min(seconds, TEND_SECONDS)
        events = self._poll.poll(math.ceil(wait * 1000))
        died = []
        for fd, _ in events:
            if fd == self._crew.results_fd:
                self._take_in(self._results.read())
            elif fd == self._alarm.fd:
                self._alarm.hush()
                self._woken = True
            else:
                died.append(self._by_pidfd[fd])
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
                self._replace_env(replace(failure, worker=number, slots=self._slots_of(failure.envs)))
            else:
                self._take_reply(number, kind, payload)

    def _take_reply(self, number: int, kind: int, payload: bytes) -> None:
        if kind == Result.BUILT:
            self._built[number] = pickle.loads(payload)
            self._starting_since.pop(number, None)
            if self._is_open:
                self._order_resets(number, self._pending_resets.pop(number, []))
        else:
            self._replies[number] = pickle.loads(payload) if payload else None

    def _wait_for(self, done: Callable[[], bool]) -> None:
        while not done():
            self._listen(TEND_SECONDS)

    def _ask(self, command: int, payloads: list[bytes]) -> list:
        """One command to every worker; the replies, in the order of the workers."""
        self._replies.clear()
        restarts, deadline = self.health.restarts, time.monotonic() + self._config.start_timeout_seconds
        for worker, payload in zip(self._crew.workers, payloads, strict=True):
            worker.command(command, payload)

        def done() -> bool:
            if self.health.restarts != restarts or time.monotonic() > deadline:
                missing = [number for number in range(self._num_workers) if number not in self._replies]
                cause = "its worker died or did not answer while states were saved or restored"
                raise SimulatorError(Failure(cause=cause, phase="wait", worker=missing[0] if missing else None))
            return len(self._replies) == self._num_workers

        self._wait_for(done)
        return [self._replies[number] for number in range(self._num_workers)]

    def _quiesce(self) -> None:
        """Wait until nothing is in flight."""
        everything = list(range(self.spec.num_envs))
        self._wait_for(lambda: not self._book.in_flight(everything))

    # ---------------------------------------------------------------- faults

    def _tend(self, now: float) -> None:
        """Look for workers that died unnoticed, hang, or leak."""
        for worker in list(self._crew.workers):
            number = worker.number
            if worker.pidfd is None and worker.exited():
                self._bury(worker)
            elif number in self._starting_since:
                if now - self._starting_since[number] > self._config.start_timeout_seconds:
                    self._bury(worker, f"making the environments took over {self._config.start_timeout_seconds:g} s")
            elif self._is_open and self._heartbeat.env[number] != IDLE:
                busy = now - self._heartbeat.since[number]
                if busy > self._config.step_timeout_seconds:
                    self._bury(worker, f"no answer for {busy:.1f} s (pool.step_timeout_seconds)")
        made = [worker.pid for worker in self._crew.workers if worker.number not in self._starting_since]
        self.health.watch(made, now)

    def _bury(self, worker: WorkerProcess, hung: str | None = None) -> None:
        """A worker is dead, or as good as dead: end it, say so, and start another in its place if the budget allows."""
        while messages := self._results.read():  # what it still said counts
            self._take_in(messages)
        stack = worker.stack() if hung else ""
        if worker.pidfd is not None:
            self._poll.unregister(worker.pidfd)
            del self._by_pidfd[worker.pidfd]
        report = "" if hung else worker.crash_report()
        ending = self._crew.remove(worker)
        self._results.forget(worker.sender)
        del self._number_of[worker.sender]
        number = worker.number
        failure = self._describe(number, hung or f"the worker process {ending}", stack or report)
        if not self._is_open:
            raise SimulatorError(failure)
        self._spend_restart(failure)
        self._heartbeat.env[number] = IDLE
        envs = self._envs_of[number]
        self._incarnation[envs] += 1
        running = self._book.in_flight(envs)
        self.health.lost_episodes += len(envs)
        self._stale[envs] = True
        self._any_stale = True
        self._attach(self._start(number))
        self._pending_resets[number] = []
        self._restart_stale(np.array(running, np.int64))

    def _describe(self, number: int, cause: str, traceback: str) -> Failure:
        if not self._is_open:
            envs: tuple[int, ...] = tuple(self._envs_of[number])
            return Failure(cause=cause, phase="make", envs=envs, slots=envs, worker=number, traceback=traceback)
        env = int(self._heartbeat.env[number])
        if env == IDLE:
            envs = tuple(self._envs_of[number])
            slots = self._slots_of(envs)
            return Failure(cause=cause, phase="wait", envs=envs, slots=slots, worker=number, traceback=traceback)
        slots = self._slots_of((env,))
        return Failure(
            cause=cause,
            phase="step",
            envs=(env,),
            slots=slots,
            worker=number,
            seed=env_seed(self._seed, env, int(self._incarnation[env])),
            episode=int(self._table.episode[slots[0]]),
            step=int(self._table.step[slots[0]]),
            traceback=traceback,
        )

    def _replace_env(self, failure: Failure) -> None:
        """An environment's own code failed; its worker is well."""
        if failure.phase == "usage":
            raise UsageError(failure.cause)
        if failure.phase in ("make", "worker") or self._config.on_error == "stop":
            raise SimulatorError(failure)
        self._spend_restart(failure)
        (env,), number = failure.envs, failure.worker
        assert number is not None
        self._incarnation[env] += 1
        self.health.lost_episodes += 1
        self._crew.workers[number].command(Command.REMAKE, pack_ints([env]))
        self._book.mark_lost(env)
        self._order_resets(number, [env])

    def _spend_restart(self, failure: Failure) -> None:
        budget = self._config.max_restarts
        if self.health.restarts >= budget:
            raise SimulatorError(failure, f"the budget of {budget} restarts is spent (pool.max_restarts)")
        self.health.restarts += 1
        log.warning("replacing a simulator (%d of %d): %s", self.health.restarts, budget, failure)

    def _restart_stale(self, envs: np.ndarray) -> np.ndarray:
        """Of `envs`, which were just sent, start those anew whose worker was replaced; the others are returned."""
        stale = envs[self._stale[envs]]
        for env in stale.tolist():
            self._stale[env] = False
            self._book.mark_lost(env)
            number = int(self._worker_of[env])
            if number in self._built:
                self._order_resets(number, [env])
            else:
                self._pending_resets[number].append(env)
        fresh = np.isin(envs, stale, invert=True)
        self._any_stale = bool(self._stale.any())
        return envs[fresh]

    def _order_resets(self, number: int, envs: list[int]) -> None:
        """New episodes for replaced environments, numbered on and seeded afresh."""
        jobs = []
        for env in envs:
            episode = int(self._table.episode[self._slots_of((env,))[0]]) + 1
            jobs.append((env, env_seed(self._seed, env, int(self._incarnation[env])), episode))
        self._crew.workers[number].command(Command.RESET, pickle.dumps(jobs))

    def _slots_of(self, envs: tuple[int, ...]) -> tuple[int, ...]:
        agents = self.spec.agents_per_env if self._is_open else 1
        return tuple(env * agents + agent for env in envs for agent in range(agents))


def _assign(num_envs: int, num_workers: int, num_groups: int) -> list[list[int]]:
    """Which environments each worker owns: a contiguous, even share of every group, and even shares in all.

    >>> _assign(7, 2, 2)
    [[0, 1, 3, 4], [2, 5, 6]]
    """
    owned: list[list[int]] = [[] for _ in range(num_workers)]
    for group in range(num_groups):
        start, stop = num_envs * group // num_groups, num_envs * (group + 1) // num_groups
        share, extra = divmod(stop - start, num_workers)
        by_load = sorted(range(num_workers), key=lambda number: len(owned[number]))
        favoured = set(by_load[:extra])
        for number in range(num_workers):
            end = start + share + (number in favoured)
            owned[number] += range(start, end)
            start = end
    return owned
