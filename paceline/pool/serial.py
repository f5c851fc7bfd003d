"""Simulators stepped in this process, one after the other: deterministic, debuggable, the reference for other pools."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from paceline.envs.factory import Factory
from paceline.errors import SimulatorError, SimulatorFailure, UsageError
from paceline.pool.budget import RestartBudget
from paceline.pool.closing import close_all
from paceline.pool.config import PoolConfig
from paceline.pool.distinct import require_distinct
from paceline.pool.env_state import UnreadableState
from paceline.pool.protocol import Array, Episode, Pool, StepBatch
from paceline.pool.saved_pool import SavedPool, pack_pool
from paceline.pool.seeds import EnvSeeds
from paceline.pool.shapes import env_shape, make_spec
from paceline.pool.slot_states import SlotStates
from paceline.pool.stepper import Stepper, failure_of, make_stepper
from paceline.pool.table import SlotTable
from paceline.telemetry.phases import STARTING, Phases


class SerialPool(Pool):
    """A `Pool` in this process. `recv` does the steps, in the order of `send`. A hung step blocks the process."""

    can_restore = True

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0, phases: Phases | None = None) -> None:
        """`phases` shows how many environments are made."""
        phases = phases or Phases()
        self._factory, self._config = factory, config
        self._budget = RestartBudget(config)
        self._closed = False
        self._envs: list[Any] = []
        try:
            self._start_all(phases, seed)
        except BaseException:
            self.close()
            raise

    def _start_all(self, phases: Phases, seed: int) -> None:
        factory, config = self._factory, self._config
        for index in range(config.num_envs):
            phases.show(STARTING, index, config.num_envs, "")
            self._envs.append(self._make_env(index))
        phases.end(STARTING)
        require_distinct(self._envs)
        self.spec = make_spec({0: env_shape(self._envs[0])}, config, factory.frameskip, num_workers=1)
        self._table = SlotTable(self.spec)
        self._table.reset_reward_weights()
        self._steppers: list[Stepper] = [make_stepper(env, index, self._table) for index, env in enumerate(self._envs)]
        self._seeds = EnvSeeds(self._table, seed)
        self._episodes: list[Episode] = []
        self._slots = SlotStates(self.spec, self._table.due)
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
        """See `Pool.recv`. Steps everything that was sent, whatever `max_slots` says, since nothing runs in parallel.

        Only `wake` interrupts it, between two environments. `timeout` does not, because batches, and with them
        deterministic runs, would then depend on the speed of the machine.
        """
        self._slots.wanted(min_slots, max_slots, group)
        while self._queue:
            if self._woken:
                self._woken = False
                return self._table.batch(*self._slots.take_none())
            env = self._queue.popleft()
            self._run(env, self._steppers[env].step)
        return self._table.batch(*self._slots.take(max_slots, group, first))

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        slots, rows = self._slots.check(slots)
        self._table.write_actions(actions, slots, rows)
        self._queue += self._slots.release(slots, rows).tolist()

    @property
    def num_in_flight(self) -> int:
        return self._slots.num_in_flight

    def wake(self) -> None:
        self._woken = True

    def reset(self, seed: int) -> None:
        self._seeds.begin(seed)
        self._woken = False
        self._queue.clear()
        self._episodes.clear()
        self._slots.restart()
        for env in range(self.spec.num_envs):
            self._start(env)

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def set_reward_weights(self, slots: Array, weights: Array) -> None:
        self._table.set_reward_weights(slots, weights)

    @property
    def restarts(self) -> int:
        return self._budget.restarts

    def state(self, timeout: float | None = None) -> bytes:
        """See `Pool.state`. `timeout` cannot interrupt an environment; the environments after it are left out."""
        deadline = time.monotonic() + (self._config.start_timeout_seconds if timeout is None else timeout)
        states: dict[int, bytes] = {}
        reasons: dict[int, str] = {}
        for env in self._slots.held_envs():
            if time.monotonic() > deadline:
                break
            try:
                states[env] = self._steppers[env].state()
            except (Exception, SystemExit) as error:
                reasons[env] = str(error)
        return pack_pool(states, reasons, self._table, self._seeds, self._episodes)

    def restore(self, state: bytes) -> np.ndarray:
        saved = SavedPool.unpack(state, self.spec.num_envs)
        unreadable: dict[int, str] = {}
        for env, inner in saved.envs.items():
            try:
                self._steppers[env].restore(inner)
            except UnreadableState as error:
                unreadable[env] = str(error)
        saved.leave_out(unreadable)
        missing = saved.put_back(self._table, self._seeds)
        self._episodes = saved.episodes
        self._queue.clear()
        self._slots.restart(saved.envs)
        for env in missing:
            self._start(env)
        return np.array([slot for env in missing for slot in self._steppers[env].slots], np.int64)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close_all(self._envs)

    def _make_env(self, index: int) -> object:
        try:
            return self._factory.make(index)
        except UsageError:
            raise
        except (Exception, SystemExit) as error:  # sys.exit, when a window is closed, does not end the run
            cause = f"{type(error).__name__}: {error}"
            raise SimulatorError(SimulatorFailure(cause=cause, phase="make", envs=(index,), slots=(index,))) from error

    def _start(self, env: int) -> None:
        ((_, seed, episode),) = self._seeds.reset_jobs([env])
        self._run(env, self._steppers[env].reset, seed, episode)

    def _run(self, env: int, operation: Callable[..., Sequence[Episode] | None], *arguments: int) -> None:
        """Reset or step `env`. If that fails, replace it or end the run."""
        start = time.perf_counter()
        try:
            if ended := operation(*arguments):
                self._episodes += ended
        except (Exception, SystemExit) as error:
            self._replace(env, error)
            return
        slots = self._steppers[env].slots
        self._table.step_seconds[slots[0] : slots[-1] + 1] = time.perf_counter() - start
        self._slots.mark_ready([env])

    def _replace(self, env: int, error: BaseException) -> None:
        failure = failure_of(self._steppers[env], error)
        if self._config.on_error == "stop":
            raise SimulatorError(failure) from error
        self._budget.spend(failure)
        close_all([self._envs[env]])
        self._envs[env] = None
        self._envs[env] = self._make_env(env)
        require_distinct(self._envs)
        self._steppers[env] = make_stepper(self._envs[env], env, self._table)
        self._seeds.renew([env])
        self._slots.mark_lost(env)
        self._start(env)
