"""EnvPool behind our protocol: C++ environments, stepped by C++ threads in this process.

                  launch(slots, actions)                    _send, _reset
    EnvPoolPool  ------------------------>  Engine (thread)  ------------>  EnvPool (threads of its own)
        ^   ^                                  |     |       <------------
        |   +-------- finished slots ----------+     |           _recv
        +---- SlotTable: one copy of each row -------+

There is one EnvPool per group, each with all the threads: groups take turns, so the threads of the others mostly sleep.

How rows come back is chosen by the id's `batch_size`. By default a group's rows come back together with those they were
sent with, which is fastest where steps cost the same, as in most of EnvPool's tasks. With `batch_size=1` each row comes
back as soon as it is finished, which is what `recv(min_slots=1)` needs to profit from uneven steps; it costs some 10 us
of Python per row.

Limits that come with C++ in this process: a crash inside EnvPool ends the process; an environment cannot be replaced,
whatever `on_error` says; a hung one is noticed and named, but its thread stays behind; `nice` does not apply.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.envs.envpool import EnvPoolTask, spaces_of
from paceline.envs.registry import Factory
from paceline.errors import Failure, SimulatorError, UsageError
from paceline.pool.book import SlotBook
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.envpool_engine import Assignment, Engine
from paceline.pool.envpool_rows import RowWriter
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch, named_actions
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import check_actions
from paceline.pool.table import SlotTable

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

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0) -> None:
        if not isinstance(factory.make, EnvPoolTask):
            raise UsageError(f"{factory.label or factory.make} is no EnvPool task; the id of one is envpool:NAME")
        self._task, self._config = factory.make, config
        self._task_spec = self._task.spec()
        observation_space, action_space = spaces_of(self._task_spec)
        self.spec = PoolSpec(
            observation_space=observation_space,
            action_space=action_space,
            num_envs=config.num_envs,
            frameskip=factory.frameskip,
            num_groups=config.groups,
        )
        (self._action,) = self.spec.actions
        dtype, shape, *_ = self._task_spec._action_spec[-1]
        self._action_dtype = np.dtype(dtype)
        self._action_shape = tuple(size for size in shape if size != -1)
        self._action_offset = self._action.offset or None
        # Discrete actions that EnvPool takes as 32-bit integers, as all of its tasks do, have a cheap test.
        cheap = isinstance(self._action.space, spaces.Discrete) and self._action_dtype == np.int32
        self._num_actions = int(self._action.space.n) if cheap else None
        self._engines: list[Engine] = []
        self._start(seed)

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
    ) -> StepBatch:
        self._require_running()
        book = self._book
        want = book.wanted(min_slots, group)
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self._results.empty():
            self._note(self._results.get())
        while book.num_ready(group) < want:
            left = deadline - time.monotonic() if timeout is not None else math.inf
            if left <= 0:
                break
            self._listen(min(left, LOOK_SECONDS))
        batch = self._table.batch(*book.take(max_slots, group))
        self._claim_episodes(batch)
        self._received = batch.slots
        batch.slots.flags.writeable = False
        return batch

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        self._require_running()
        # What was just received, as it was received, is known to be held, ascending and without repetition.
        known = slots is self._received
        if not known:
            slots = self._book.check(slots)
        values = self._checked(actions, slots)
        if not known and not (slots[1:] > slots[:-1]).all():
            order = np.argsort(slots)
            slots, values = slots[order], values[order]
        self._received = None
        self._book.release(slots)
        self._sent_at[slots] = time.monotonic()
        if len(self._engines) == 1 and len(slots):
            self._engines[0].launch(slots, values)
            return
        for engine in self._engines:
            begin, end = np.searchsorted(slots, (engine.work.slots.start, engine.work.slots.stop))
            if begin < end:
                engine.launch(slots[begin:end], values[begin:end])

    def reset(self, seed: int) -> None:
        """EnvPool's seeds are fixed when its environments are made, so they are made anew."""
        self._require_running()
        self._stop()
        self._start(seed)

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> bytes:
        raise UsageError("EnvPool's environments cannot be saved; for an exact resume use the serial or process pool")

    def restore(self, state: bytes) -> None:
        raise UsageError("EnvPool's environments cannot be restored; for an exact resume use the serial or process pool")

    def close(self) -> None:
        self._stop()

    def __enter__(self) -> EnvPoolPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, seed: int) -> None:
        config, spec = self._config, self.spec
        self._seed = seed
        self._book = SlotBook(spec)
        self._table = SlotTable(spec)
        self._table.active[:] = True
        self._results: SimpleQueue[Any] = SimpleQueue()
        self._episodes: list[Episode] = []
        self._received: np.ndarray | None = None
        # The first wait includes making the environments.
        self._sent_at = np.full(spec.num_slots, time.monotonic() + config.start_timeout_seconds)
        writer = RowWriter(self._task_spec, spec, self._table)
        self._finished = writer.finished
        threads = config.workers or len(available_core_ids())
        for group in range(spec.num_groups):
            slots = spec.group_slots(group)
            work = Assignment(
                task=self._task,
                slots=slots,
                seeds=[env_seed(seed, slot) for slot in slots],
                threads=min(threads, len(slots)),
                affinity=config.affinity,
            )
            self._engines.append(Engine(work, writer, self._table, self._sent_at, self._results))

    def _stop(self) -> None:
        engines, self._engines = self._engines, []
        for engine in engines:
            engine.ask_to_stop()
        for engine in engines:
            engine.join(CLOSE_SECONDS)

    def _checked(self, actions: Array | Mapping[str, Array], slots: np.ndarray) -> np.ndarray:
        """The actions as EnvPool wants them, in memory of our own: the caller may write to its array meanwhile."""
        leaf = self._action
        given = np.asarray(named_actions(actions, self.spec.actions)[leaf.name])
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
        return bool(values.view(np.uint32).max() < self._num_actions)  # a negative number is a large one here

    def _claim_episodes(self, batch: StepBatch) -> None:
        if not self._finished:
            return
        if len(batch) == self.spec.num_slots:
            self._episodes += self._finished.values()
            self._finished.clear()
        else:
            self._episodes += [self._finished.pop(slot) for slot in batch.slots[batch.ended()].tolist()]

    def _require_running(self) -> None:
        if not self._engines:
            raise UsageError("the pool is closed")

    def _listen(self, seconds: float) -> None:
        """Note the next thing that happens, if it happens within `seconds`."""
        try:
            self._note(self._results.get(timeout=seconds))
        except Empty:
            self._look_for_hung()
            return
        while not self._results.empty():
            self._note(self._results.get())

    def _note(self, result: list[int] | Failure) -> None:
        if isinstance(result, Failure):
            self._fail(result)
        self._book.mark_ready(result)

    def _look_for_hung(self) -> None:
        hung = np.flatnonzero(time.monotonic() - self._sent_at > self._config.step_timeout_seconds)
        if len(hung):
            slots = tuple(hung.tolist())
            cause = f"no answer within {self._config.step_timeout_seconds:g} seconds (pool.step_timeout_seconds)"
            slot = slots[0]
            self._fail(Failure(cause=cause, phase="step", envs=slots, slots=slots, step=int(self._table.step[slot])))

    def _fail(self, failure: Failure) -> None:
        self._stop()
        raise SimulatorError(failure)
