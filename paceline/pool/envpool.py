"""EnvPool behind our protocol: C++ environments, stepped by C++ threads in this process.

                  launch(slots, actions)                     send
    EnvPoolPool  ------------------------>  Engine (thread)  ----->  EnvPool (threads of its own)
                 <------------------------                   <-----
                 finished rows                               recv

There is one EnvPool per group, each with all the threads. Groups take turns, so the threads of the others mostly sleep.

The id's `batch_size` chooses how rows come back. By default the rows that were sent together come back together, which
is fastest if all steps cost the same, as in most of EnvPool's tasks. With `batch_size=1` each row comes back as soon as
it is finished, so `recv(min_slots=1)` gains from uneven steps. Every row then costs processor time of its own, so it
pays only for steps of half a millisecond and more.

C++ in this process has limits. A crash inside EnvPool ends the process. A failed environment cannot be replaced,
whatever `on_error` says. A hung one is detected and named, but its thread stays behind, or the process ends if the pool
waited for it directly (see `envpool_engine`). `nice` does not apply.
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Mapping
from operator import attrgetter
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from paceline.envs.envpool import EnvPoolTask
from paceline.envs.factory import Factory
from paceline.errors import SimulatorError, SimulatorFailure, UsageError
from paceline.pool.arguments import check_slots, named_actions
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.envpool_engine import FAST_SECONDS, Engine, EngineConfig, Watchdog
from paceline.pool.envpool_rows import FinishedRows, ReadyQueue, RowReader
from paceline.pool.protocol import Array, Episode, Pool, PoolSpec, StepBatch
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import check_actions

CHECK_SECONDS = 0.5
"""Time between two checks for hung simulators while `recv` waits."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for the current step."""


class EnvPoolPool(Pool):
    """A `Pool` over EnvPool. The stream of environment e depends on the seed and e only, not on groups or threads.

    The return of an episode is the sum of the unclipped rewards where EnvPool provides them (Atari). The episode's info
    has the scalars of EnvPool's last info and `elapsed_step`. EnvPool sets its truncation flag on the last step before
    the time limit even if the task ended by itself on that step. Only Atari tells the difference, and there termination
    wins.
    """

    can_restore = False

    _received: np.ndarray | None
    """The slots of the last batch, until something else is received or sent."""
    _ends: list[tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]]
    """Slots, returns, lengths and infos of finished episodes that nobody has taken yet."""
    _num_episodes: np.ndarray
    """[N]: episodes that were reported."""

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0) -> None:
        if not isinstance(factory.make, EnvPoolTask):
            raise UsageError(f"{factory.label or factory.make} is no EnvPool task; the id of one is envpool:NAME")
        self._task, self._config = factory.make, config
        self._task_spec = self._task.spec()
        observation_space, action_space = self._task.spaces(self._task_spec)
        self.spec = PoolSpec(
            observation_space=observation_space,
            action_space=action_space,
            num_envs=config.num_envs,
            frameskip=factory.frameskip,
            num_groups=config.groups,
            in_step=not self._task.batch_size,
        )
        (self._action,) = self.spec.actions
        dtype, shape, *_ = self._task_spec._action_spec[-1]
        self._action_dtype = np.dtype(dtype)
        self._action_shape = tuple(size for size in shape if size != -1)
        self._action_offset = self._action.offset or None
        self._always, self._never = np.ones(config.num_envs, bool), np.zeros(config.num_envs, bool)
        self._always.flags.writeable = self._never.flags.writeable = False
        obs = {leaf.name: np.empty((0, *leaf.shape), leaf.dtype) for leaf in self.spec.obs}
        number, flag = np.empty(0, np.float32), np.empty(0, bool)
        self._no_rows = FinishedRows(np.empty(0, np.int64), obs, number, flag, flag, flag, number, number, number, {})
        self._engines: list[Engine] = []
        self._woken = False
        self._start(seed)

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        self._require_running()
        deadline = None if timeout is None else time.monotonic() + timeout
        self._hold_received()
        queue = self._queue
        want = queue.wanted(min_slots, max_slots, group)
        self._update_episodes()  # here, while EnvPool simulates and we would only wait
        self._handle_results()
        if queue.num_ready(group) >= want:  # this call waits for nothing, so nobody would complete a direct flight
            for engine in self._engines:
                engine.leave_to_thread()
        while queue.num_ready(group) < want:
            if self._woken:
                self._woken = False
                return self._deliver(self._no_rows)
            if self._complete_oldest(group, timeout):
                continue
            left = CHECK_SECONDS if deadline is None else min(CHECK_SECONDS, deadline - time.monotonic())
            if left <= 0:
                break
            try:
                self._handle(self._results.get(timeout=left))
            except Empty:
                self._check_for_hung()
            else:
                self._handle_results()
        taken = queue.take(max_slots, group)
        self._not_counted += taken
        return self._deliver(FinishedRows.merge(taken) if taken else self._no_rows)

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        self._require_running()
        received = self._received
        if received is not None and slots is received:  # known to be held, ascending and without duplicates
            values = self._checked_actions(actions, received)
            self._received = None
        else:
            self._hold_received()
            slots = check_slots(slots, self._held)
            values = self._checked_actions(actions, slots)
            self._held[slots] = False
            order = np.argsort(slots)
            slots, values = slots[order], values[order]
        if len(self._engines) == 1:
            self._launch(self._engines[0], slots, values)
            return
        for engine in self._engines:
            begin, end = np.searchsorted(slots, (engine.work.slots.start, engine.work.slots.stop))
            self._launch(engine, slots[begin:end], values[begin:end])

    @property
    def num_in_flight(self) -> int:
        self._hold_received()
        return int(np.count_nonzero(~self._held))

    def wake(self) -> None:
        self._woken = True
        self._results.put(None)  # ends a wait; reentrant, so signal handlers may use it

    def reset(self, seed: int) -> None:
        """EnvPool's seeds are fixed when it makes its environments, so this makes new ones."""
        self._require_running()
        self.close()
        self._start(seed)

    def take_episodes(self) -> list[Episode]:
        self._update_episodes()
        ends, self._ends = self._ends, []
        episodes: list[Episode] = []
        for slots, returns, lengths, info in ends:
            episodes += _episodes(slots, returns, lengths, info, self._num_episodes[slots])
            self._num_episodes[slots] += 1
        return episodes

    def state(self, timeout: float | None = None) -> bytes:
        raise UsageError("EnvPool's environments cannot be saved; for an exact resume use the serial or process pool")

    def restore(self, state: bytes) -> np.ndarray:
        raise UsageError(
            "EnvPool's environments cannot be restored; for an exact resume use the serial or process pool"
        )

    def close(self) -> None:
        self._engines = []
        self._finalizer()

    def _start(self, seed: int) -> None:
        config, spec = self._config, self.spec
        groups = [spec.group_slots(group) for group in range(spec.num_groups)]
        self._queue = ReadyQueue([len(slots) for slots in groups])
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._woken = False
        self._held = np.zeros(spec.num_slots, bool)
        self._received = None
        self._returns = np.zeros(spec.num_slots)
        self._not_counted: list[FinishedRows] = []
        self._ends = []
        self._num_episodes = np.zeros(self.spec.num_slots, np.int64)
        self._reader = RowReader(self._task, self._task_spec, spec, seed)
        self._started_at = time.monotonic()
        message = f"{self._task.name} gave no answer within {config.step_timeout_seconds:g} seconds "
        message += "(pool.step_timeout_seconds); EnvPool cannot be interrupted, so the process ends here"
        self._watchdog = Watchdog(config.step_timeout_seconds, message)
        cores = available_core_ids()
        threads = config.workers or len(cores)
        # The threads of several ranks would be bound to the same cores, and busy ones could not move away.
        crowded = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1
        affinity = bool(config.affinity) if crowded else config.affinity
        for group, slots in enumerate(groups):
            work = EngineConfig(
                group=group,
                task=self._task,
                slots=slots,
                seeds=[env_seed(seed, slot) for slot in slots],
                threads=min(threads, len(slots)),
                cores=cores,
                affinity=affinity,
                no_action=np.zeros((len(slots), *self._action_shape), self._action_dtype),
            )
            self._engines.append(Engine(work, self._reader, self._results))
        # An EnvPool that still works when the interpreter ends would abort the process.
        self._finalizer = weakref.finalize(self, _stop, list(self._engines), self._watchdog)

    def _require_running(self) -> None:
        if not self._engines:
            raise UsageError("the pool is closed")

    def _launch(self, engine: Engine, slots: np.ndarray, values: np.ndarray) -> None:
        if len(slots):
            alone = self._queue.expect(engine.work.group, len(slots))
            engine.launch(slots, values, alone)

    def _deliver(self, rows: FinishedRows) -> StepBatch:
        self._received = rows.slots
        rows.slots.flags.writeable = False
        count = len(rows)
        return StepBatch(
            slots=rows.slots,
            obs=rows.obs,
            reward=rows.reward,
            terminated=rows.terminated,
            truncated=rows.truncated,
            final_obs=self._reader.final_obs,
            active=self._always[:count],
            lost=self._never[:count],
            step_seconds=rows.step_seconds,
        )

    def _hold_received(self) -> None:
        """Mark the last batch as held. Done late, because the caller usually sends the whole batch back."""
        if self._received is not None:
            self._held[self._received] = True
            self._received = None

    def _checked_actions(self, actions: Array | Mapping[str, Array], slots: np.ndarray) -> np.ndarray:
        """The actions in EnvPool's format. A copy, because the caller may reuse its array."""
        leaf = self._action
        if type(actions) is not np.ndarray:
            actions = named_actions(actions, self.spec.actions)[leaf.name]
        values = check_actions(actions, leaf, slots).astype(self._action_dtype)
        if self._action_offset is not None:
            values += self._action_offset
        return values if self._action_shape == leaf.shape else values.reshape(len(slots), *self._action_shape)

    def _update_episodes(self) -> None:
        """Add delivered rows to their episodes."""
        delivered, self._not_counted = self._not_counted, []
        for rows in delivered:
            self._returns[rows.slots] += rows.score
            ended = rows.done.nonzero()[0]
            if len(ended):
                slots = rows.slots[ended]
                info = {name: values[ended] for name, values in rows.info.items()}
                self._ends.append((slots, self._returns[slots], rows.length[ended], info))
                self._returns[slots] = 0.0

    def _complete_oldest(self, group: int | None, timeout: float | None) -> bool:
        """Wait directly for the oldest direct flight, if there is one and time for it."""
        engines = self._engines if group is None else self._engines[group : group + 1]
        engine = min(engines, key=_direct_since)
        if engine.direct_since == math.inf:
            return False
        if timeout is not None and timeout < FAST_SECONDS:
            engine.leave_to_thread()
            return False
        self._watchdog.guard()
        try:
            rows = engine.complete()
        except SimulatorError:
            self.close()
            raise
        finally:
            self._watchdog.release()
        self._queue.put(engine.work.group, rows)
        return True

    def _handle_results(self) -> None:
        while not self._results.empty():
            self._handle(self._results.get())

    def _handle(self, result: tuple[int, FinishedRows] | SimulatorFailure | None) -> None:
        if result is None:  # only to end a wait
            return
        if isinstance(result, SimulatorFailure):
            self.close()
            raise SimulatorError(result)
        self._queue.put(*result)

    def _check_for_hung(self) -> None:
        now, config = time.monotonic(), self._config
        for engine in self._engines:
            hung = tuple(engine.waiting_since(now - config.step_timeout_seconds))
            phase, limit = "step", f"{config.step_timeout_seconds:g} seconds (pool.step_timeout_seconds)"
            if not engine.made and now - self._started_at > config.start_timeout_seconds:
                hung = tuple(engine.work.slots)
                phase, limit = "make", f"{config.start_timeout_seconds:g} seconds (pool.start_timeout_seconds)"
            if hung:
                self.close()
                raise SimulatorError(
                    SimulatorFailure(cause=f"no answer within {limit}", phase=phase, envs=hung, slots=hung)
                )


_direct_since = attrgetter("direct_since")


def _stop(engines: list[Engine], watchdog: Watchdog) -> None:
    watchdog.stop()
    for engine in engines:
        engine.ask_to_stop()
    for engine in engines:
        engine.join(CLOSE_SECONDS)


def _episodes(
    slots: np.ndarray, returns: np.ndarray, lengths: np.ndarray, info: dict[str, np.ndarray], counts: np.ndarray
) -> list[Episode]:
    columns = zip(*(values.tolist() for values in info.values()), strict=True)
    infos = [dict(zip(info, row, strict=True)) for row in columns]
    return list(map(Episode, slots.tolist(), returns.tolist(), lengths.tolist(), infos, counts.tolist()))
