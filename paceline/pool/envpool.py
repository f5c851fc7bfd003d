"""EnvPool behind our protocol: C++ environments, stepped by C++ threads in this process.

                  launch(slots, actions)                     send
    EnvPoolPool  ------------------------>  Engine (thread)  ----->  EnvPool (threads of its own)
                 <------------------------                   <-----
                 parcels of EnvPool's arrays                 recv

There is one EnvPool per group, each with all the threads: groups take turns, so the threads of the others mostly sleep.

How rows come back is chosen by the id's `batch_size`. By default a group's rows come back together with those they were
sent with, which is fastest where steps cost the same, as in most of EnvPool's tasks. With `batch_size=1` each row comes
back as soon as it is finished, which is what `recv(min_slots=1)` needs to profit from uneven steps; it costs up to 0.1 ms
of a core per row, so it is for steps of half a millisecond and more (measured on 2 cores: 0.95 of EnvPool's own speed
for Breakout, 0.3 for HalfCheetah).

Limits that come with C++ in this process: a crash inside EnvPool ends the process; an environment cannot be replaced,
whatever `on_error` says; a hung one is noticed and named, but its thread stays behind, or the process ends where steps
were so fast that they were waited for directly (see `envpool_engine`); `nice` does not apply.
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
from gymnasium import spaces

from paceline.envs.envpool import EnvPoolTask
from paceline.envs.registry import Factory
from paceline.errors import Failure, SimulatorError, UsageError
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.envpool_engine import BRISK_SECONDS, Assignment, Engine
from paceline.pool.envpool_rows import RowReader
from paceline.pool.parcels import Parcel, Shelf, merge
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch, as_slots, named_actions
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import check_actions
from paceline.pool.watchdog import Watchdog

LOOK_SECONDS = 0.5
"""How often a waiting `recv` looks for hung simulators."""
CLOSE_SECONDS = 5.0
"""How long `close` waits for a step under way."""


class EnvPoolPool:
    """A `Pool` over EnvPool. Environment e's stream depends on the seed and e alone, not on groups or threads.

    An episode's return is the sum of the unclipped rewards where EnvPool gives these (Atari); its info holds the
    scalars of EnvPool's last info and `elapsed_step`. EnvPool sets its truncation flag on the last step before the
    time limit even where the task ended by itself on that very step; only Atari tells, and there termination wins.
    """

    can_restore = False

    _received: np.ndarray | None
    """The slots of the last batch, while nothing else was received or sent since."""
    _ends: list[tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]]
    """Slots, returns, lengths and infos of finished episodes that nobody has asked for yet."""

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
        space = self._action.space
        self._num_actions = int(space.n) if isinstance(space, spaces.Discrete) else None
        self._always, self._never = np.ones(config.num_envs, bool), np.zeros(config.num_envs, bool)
        self._always.flags.writeable = self._never.flags.writeable = False
        self._nothing = _empty_parcel(self.spec)
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
        shelf = self._shelf
        want = shelf.wanted(min_slots, max_slots, group)
        self._settle()  # here, where EnvPool is simulating and we would only wait
        self._note_all()
        if shelf.num_ready(group) >= want:  # nothing to wait for, so nothing may depend on being waited for
            for engine in self._engines:
                engine.leave_to_thread()
        while shelf.num_ready(group) < want:
            if self._woken:
                self._woken = False
                return self._deliver(self._nothing)
            if self._complete_oldest(group, timeout):
                continue
            left = LOOK_SECONDS if deadline is None else min(LOOK_SECONDS, deadline - time.monotonic())
            if left <= 0:
                break
            self._listen(left)
        parcels = shelf.take(max_slots, group)
        self._unsettled += parcels
        return self._deliver(merge(parcels) if parcels else self._nothing)

    @property
    def num_in_flight(self) -> int:
        self._hold_received()
        return int(np.count_nonzero(~self._held))

    def wake(self) -> None:
        self._woken = True
        self._results.put(None)  # ends a wait; reentrant, so signal handlers may use it

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        self._require_running()
        received = self._received
        if received is not None and slots is received:  # known to be held, ascending and without repetition
            values = self._checked_actions(actions, received)
            self._received = None
        else:
            self._hold_received()
            slots = self._checked_slots(slots)
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

    def reset(self, seed: int) -> None:
        """EnvPool's seeds are fixed when its environments are made, so they are made anew."""
        self._require_running()
        self._stop()
        self._start(seed)

    def take_episodes(self) -> list[Episode]:
        self._settle()
        ends, self._ends = self._ends, []
        return [episode for end in ends for episode in _episodes(*end)]

    restarts = 0

    def state(self, timeout: float | None = None) -> bytes:
        raise UsageError("EnvPool's environments cannot be saved; for an exact resume use the serial or process pool")

    def restore(self, state: bytes) -> np.ndarray:
        raise UsageError(
            "EnvPool's environments cannot be restored; for an exact resume use the serial or process pool"
        )

    def close(self) -> None:
        self._stop()

    def __enter__(self) -> EnvPoolPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, seed: int) -> None:
        config, spec = self._config, self.spec
        groups = [spec.group_slots(group) for group in range(spec.num_groups)]
        self._shelf = Shelf([len(slots) for slots in groups])
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._woken = False
        self._held = np.zeros(spec.num_slots, bool)
        self._received = None
        self._returns = np.zeros(spec.num_slots)
        self._unsettled: list[Parcel] = []
        self._ends = []
        self._reader = RowReader(self._task, self._task_spec, spec, seed)
        self._started_at = time.monotonic()
        message = f"{self._task.name} gave no answer within {config.step_timeout_seconds:g} seconds "
        message += "(pool.step_timeout_seconds); EnvPool cannot be interrupted, so the process ends here"
        self._watchdog = Watchdog(config.step_timeout_seconds, message)
        cores = available_core_ids()
        threads = config.workers or len(cores)
        # The threads of several ranks would be bound to the same cores, and those who have more to do could not move away.
        crowded = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) > 1
        affinity = bool(config.affinity) if crowded else config.affinity
        for group, slots in enumerate(groups):
            work = Assignment(
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
        # An EnvPool that is still at work when the interpreter ends would abort the process.
        self._finalizer = weakref.finalize(self, _stop, list(self._engines), self._watchdog)

    def _stop(self) -> None:
        self._engines = []
        self._finalizer()

    def _require_running(self) -> None:
        if not self._engines:
            raise UsageError("the pool is closed")

    def _launch(self, engine: Engine, slots: np.ndarray, values: np.ndarray) -> None:
        if len(slots):
            alone = self._shelf.launch(engine.work.group, len(slots))
            engine.launch(slots, values, alone)

    def _deliver(self, parcel: Parcel) -> StepBatch:
        self._received = parcel.slots
        parcel.slots.flags.writeable = False
        count = len(parcel)
        return StepBatch(
            slots=parcel.slots,
            obs=parcel.obs,
            reward=parcel.reward,
            terminated=parcel.terminated,
            truncated=parcel.truncated,
            final_obs=self._reader.final_obs,
            active=self._always[:count],
            lost=self._never[:count],
            step_seconds=parcel.step_seconds,
        )

    def _hold_received(self) -> None:
        """Note that the caller holds the last batch; not done before, as most often all of it is sent back at once."""
        if self._received is not None:
            self._held[self._received] = True
            self._received = None

    def _checked_slots(self, slots: Array) -> np.ndarray:
        slots = as_slots(slots)
        if slots.ndim != 1:
            raise ValueError(f"slots must be one-dimensional, got shape {slots.shape}")
        if len(slots) and (slots.min() < 0 or slots.max() >= len(self._held)):
            raise ValueError(f"slots must be in [0, {len(self._held)}), got {slots.tolist()}")
        if not self._held[slots].all():
            raise ValueError(f"slots {slots[~self._held[slots]].tolist()} were not received since they were last sent")
        if len(np.unique(slots)) != len(slots):
            raise ValueError(f"a slot is named twice in {slots.tolist()}")
        return slots

    def _checked_actions(self, actions: Array | Mapping[str, Array], slots: np.ndarray) -> np.ndarray:
        """The actions as EnvPool wants them, in memory of our own: the caller may write to its array meanwhile."""
        leaf = self._action
        if type(actions) is not np.ndarray:
            actions = named_actions(actions, self.spec.actions)[leaf.name]
        given = np.asarray(actions)
        values = given.astype(self._action_dtype)
        if not self._plausible(given, values, len(slots)):
            check_actions(given, leaf, slots)
        if self._action_offset is not None:
            values += self._action_offset
        return values if self._action_shape == leaf.shape else values.reshape(len(slots), *self._action_shape)

    def _plausible(self, given: np.ndarray, values: np.ndarray, count: int) -> bool:
        """One look instead of the many of `check_actions`, which then finds out what is wrong, if anything is."""
        if given.shape != (count, *self._action.shape) or not count:
            return False
        if isinstance(self._action.space, spaces.Box):
            return math.isfinite(values.sum())
        if self._num_actions is None or given.dtype.kind not in "iu":
            return False
        unsigned = given if given.dtype.kind == "u" else given.view(f"u{given.itemsize}")  # negative becomes large
        return bool(unsigned.max() < self._num_actions)

    def _settle(self) -> None:
        """Add delivered rows to their episodes."""
        parcels, self._unsettled = self._unsettled, []
        for parcel in parcels:
            self._returns[parcel.slots] += parcel.score
            ended = parcel.done.nonzero()[0]
            if len(ended):
                slots = parcel.slots[ended]
                info = {name: values[ended] for name, values in parcel.info.items()}
                self._ends.append((slots, self._returns[slots], parcel.length[ended], info))
                self._returns[slots] = 0.0

    def _listen(self, seconds: float) -> None:
        """Note what happens next, if it happens within `seconds`."""
        try:
            self._note(self._results.get(timeout=seconds))
        except Empty:
            self._look_for_hung()
            return
        self._note_all()

    def _complete_oldest(self, group: int | None, timeout: float | None) -> bool:
        """Wait directly for an engine that is too fast for anything else, if there is one and time for it."""
        engines = self._engines if group is None else self._engines[group : group + 1]
        engine = min(engines, key=_direct_since)
        if engine.direct_since == math.inf:
            return False
        if timeout is not None and timeout < BRISK_SECONDS:
            engine.leave_to_thread()
            return False
        self._watchdog.guard()
        try:
            parcel = engine.complete()
        except SimulatorError:
            self._stop()
            raise
        finally:
            self._watchdog.release()
        self._shelf.put(engine.work.group, parcel)
        return True

    def _note_all(self) -> None:
        while not self._results.empty():
            self._note(self._results.get())

    def _note(self, result: tuple[int, Parcel] | Failure | None) -> None:
        if result is None:  # only to end a wait
            return
        if isinstance(result, Failure):
            self._stop()
            raise SimulatorError(result)
        self._shelf.put(*result)

    def _look_for_hung(self) -> None:
        now, config = time.monotonic(), self._config
        for engine in self._engines:
            hung = tuple(engine.waiting_since(now - config.step_timeout_seconds))
            phase, limit = "step", f"{config.step_timeout_seconds:g} seconds (pool.step_timeout_seconds)"
            if not engine.made and now - self._started_at > config.start_timeout_seconds:
                hung = tuple(engine.work.slots)
                phase, limit = "make", f"{config.start_timeout_seconds:g} seconds (pool.start_timeout_seconds)"
            if hung:
                self._stop()
                raise SimulatorError(Failure(cause=f"no answer within {limit}", phase=phase, envs=hung, slots=hung))


_direct_since = attrgetter("direct_since")


def _stop(engines: list[Engine], watchdog: Watchdog) -> None:
    watchdog.stop()
    for engine in engines:
        engine.ask_to_stop()
    for engine in engines:
        engine.join(CLOSE_SECONDS)


def _episodes(
    slots: np.ndarray, returns: np.ndarray, lengths: np.ndarray, info: dict[str, np.ndarray]
) -> list[Episode]:
    infos = [
        dict(zip(info, row, strict=True)) for row in zip(*(values.tolist() for values in info.values()), strict=True)
    ]
    rows = zip(slots.tolist(), returns.tolist(), lengths.tolist(), infos, strict=True)
    return [Episode(*row) for row in rows]


def _empty_parcel(spec: PoolSpec) -> Parcel:
    obs = {leaf.name: np.empty((0, *leaf.shape), leaf.dtype) for leaf in spec.obs}
    number, flag = np.empty(0, np.float32), np.empty(0, bool)
    return Parcel(np.empty(0, np.int64), obs, number, flag, flag, flag, number, number, number, {})
