"""Simulators stepped in this process, one after the other: deterministic, debuggable, the reference for all others."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import numpy as np

from paceline.envs.registry import Factory
from paceline.errors import Failure, SimulatorError, UsageError
from paceline.pool.budget import RestartBudget
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch, named_actions
from paceline.pool.saved_pool import SavedPool, report_unsaved
from paceline.pool.slot_states import SlotBook
from paceline.pool.spaces import check_actions
from paceline.pool.stepper import Stepper, agents_of, make_stepper, spaces_of
from paceline.pool.streams import Streams
from paceline.pool.table import SlotTable
from paceline.telemetry.phases import STARTING, Phases


class SerialPool:
    """A `Pool` in this process. Steps happen inside `recv`, in the order in which they were sent. One that hangs, hangs the process."""

    can_restore = True

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0, phases: Phases | None = None) -> None:
        """`phases` shows how many environments are made."""
        phases = phases or Phases()
        self._factory, self._config = factory, config
        self._budget = RestartBudget(config)
        self._closed = False
        envs = []
        for index in range(config.num_envs):
            phases.show(STARTING, index, config.num_envs, "")
            envs.append(self._make_env(index))
        phases.over(STARTING)
        observation_space, action_space = spaces_of(envs[0])
        self.spec = PoolSpec(
            observation_space=observation_space,
            action_space=action_space,
            num_envs=config.num_envs,
            agents_per_env=agents_of(envs[0]),
            frameskip=factory.frameskip,
            num_groups=config.groups,
            envs_per_worker=config.num_envs,
        )
        self._table = SlotTable(self.spec)
        self._steppers: list[Stepper] = [make_stepper(env, index, self._table) for index, env in enumerate(envs)]
        self._streams = Streams(self._table, seed)
        self._episodes: list[Episode] = []
        self._book = SlotBook(self.spec)
        self._queue: deque[int] = deque()
        self._woken = False
        self.reset(seed)

    def recv(
        self,
        min_slots: int | None = 1,
        max_slots: int | None = None,
        timeout: float | None = None,
        group: int | None = None,
        first: np.ndarray | None = None,
    ) -> StepBatch:
        """See `Pool.recv`. Everything sent is stepped here, `max_slots` or not: in one process nothing is gained by
        leaving it for later. Only `wake` ends it between the steps of two environments. `timeout` does not, or batches would depend
        on how fast the machine is, and deterministic runs with them."""
        self._book.wanted(min_slots, group)
        while self._queue:
            if self._woken:
                self._woken = False
                return self._table.batch(*self._book.take_none())
            self._step(self._queue.popleft())
        return self._table.batch(*self._book.take(max_slots, group, first))

    @property
    def num_in_flight(self) -> int:
        return self._book.num_in_flight

    def wake(self) -> None:
        self._woken = True

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        slots, rows = self._book.check(slots)
        named = named_actions(actions, self.spec.actions)
        checked = [(leaf.name, check_actions(named[leaf.name], leaf, slots)) for leaf in self.spec.actions]
        for name, values in checked:
            self._table.actions[name][rows] = values
        self._queue += self._book.release(slots, rows).tolist()

    def reset(self, seed: int) -> None:
        self._streams.begin(seed)
        self._woken = False
        self._queue.clear()
        self._episodes.clear()
        self._book.launch_all()
        for env in range(self.spec.num_envs):
            self._start(env)

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    @property
    def restarts(self) -> int:
        return self._budget.restarts

    def state(self, timeout: float | None = None) -> bytes:
        """See `Pool.state`. `timeout` cannot interrupt an environment; those that come after it are left out."""
        deadline = time.monotonic() + (self._config.start_timeout_seconds if timeout is None else timeout)
        states: dict[int, bytes] = {}
        reasons: dict[int, str] = {}
        for env in self._book.held_envs():
            if time.monotonic() > deadline:
                break
            try:
                states[env] = self._steppers[env].state()
            except Exception as error:
                reasons[env] = str(error)
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
        for env, inner in saved.envs.items():
            self._steppers[env].restore(inner)
        anew = saved.missing()
        self._table.restore(saved.table)
        self._streams.begin(saved.seed, saved.incarnation)
        self._streams.renew(anew)
        self._episodes = saved.episodes
        self._queue.clear()
        self._book.ready_all(saved.envs)
        for env in anew:
            self._start(env)
        slots = [slot for env in anew for slot in self._steppers[env].slots]
        return np.array(slots, np.int64)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for stepper in self._steppers:
            stepper.close()

    def __enter__(self) -> SerialPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make_env(self, index: int) -> object:
        try:
            return self._factory.make(index)
        except UsageError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise SimulatorError(Failure(cause=cause, phase="make", envs=(index,), slots=(index,))) from error

    def _step(self, env: int) -> None:
        stepper = self._steppers[env]
        start = time.perf_counter()
        try:
            self._episodes += stepper.step()
        except Exception as error:
            self._replace(env, error)
            return
        self._table.step_seconds[list(stepper.slots)] = time.perf_counter() - start
        self._book.mark_ready([env])

    def _start(self, env: int) -> None:
        stepper = self._steppers[env]
        start = time.perf_counter()
        ((_, seed, episode),) = self._streams.jobs([env])
        try:
            stepper.reset(seed, episode)
        except Exception as error:
            self._replace(env, error)
            return
        self._table.step_seconds[list(stepper.slots)] = time.perf_counter() - start
        self._book.mark_ready([env])

    def _replace(self, env: int, error: Exception) -> None:
        """Make `env` anew after `error`, if the configuration and the budget allow it."""
        failure = self._steppers[env].failure(error)
        if self._config.on_error == "stop":
            raise SimulatorError(failure) from error
        self._budget.spend(failure)
        self._steppers[env] = make_stepper(self._make_env(env), env, self._table)
        self._streams.renew([env])
        self._book.mark_lost(env)
        self._start(env)
