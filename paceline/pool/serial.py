"""Simulators stepped in this process, one after the other: deterministic, debuggable, the reference for all others."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Mapping

import numpy as np

from paceline.envs.registry import Factory
from paceline.errors import Failure, SimulatorError, UsageError
from paceline.pool.book import SlotBook
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import Array, Episode, PoolSpec, StepBatch, named_actions
from paceline.pool.seeds import env_seed
from paceline.pool.spaces import check_actions
from paceline.pool.stepper import Stepper, agents_of, make_stepper, spaces_of
from paceline.pool.table import SlotTable

log = logging.getLogger(__name__)


class SerialPool:
    """A `Pool` in this process. Steps happen inside `recv`, in the order in which they were sent."""

    can_restore = True

    def __init__(self, factory: Factory, config: PoolConfig, seed: int = 0) -> None:
        self._factory, self._config, self._seed = factory, config, seed
        self.restarts = 0
        self._closed = False
        envs = [self._make_env(index) for index in range(config.num_envs)]
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
        self._incarnation = np.zeros(config.num_envs, np.int64)
        self._episodes: list[Episode] = []
        self._book = SlotBook(self.spec)
        self._queue: list[int] = []
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
        leaving it for later. `timeout` cannot interrupt a step."""
        self._book.wanted(min_slots, group)
        queue, self._queue = self._queue, []
        for env in queue:
            self._step(env)
        return self._table.batch(*self._book.take(max_slots, group, first))

    @property
    def num_in_flight(self) -> int:
        return self._book.num_in_flight

    def wake(self) -> None:
        """Nobody waits here."""

    def send(self, actions: Array | Mapping[str, Array], slots: Array) -> None:
        slots, rows = self._book.check(slots)
        named = named_actions(actions, self.spec.actions)
        checked = [(leaf.name, check_actions(named[leaf.name], leaf, slots)) for leaf in self.spec.actions]
        for name, values in checked:
            self._table.actions[name][rows] = values
        self._queue += self._book.release(slots, rows).tolist()

    def reset(self, seed: int) -> None:
        self._seed = seed
        self._incarnation[:] = 0
        self._queue.clear()
        self._episodes.clear()
        self._book.launch_all()
        for env in range(self.spec.num_envs):
            self._start(env)

    def take_episodes(self) -> list[Episode]:
        episodes, self._episodes = self._episodes, []
        return episodes

    def state(self) -> bytes:
        if not self._book.all_held():
            raise UsageError("a pool's state can be taken only while the caller holds all slots")
        return pickle.dumps(
            {
                "envs": [stepper.state() for stepper in self._steppers],
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
        for stepper, inner in zip(self._steppers, saved["envs"], strict=True):
            stepper.restore(inner)
        self._table.restore(saved["table"])
        self._incarnation, self._seed, self._episodes = saved["incarnation"], saved["seed"], saved["episodes"]
        self._queue.clear()
        self._book.ready_all()

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
        episode = int(self._table.episode[stepper.slots[0]]) + 1 if self._incarnation[env] else 0
        try:
            stepper.reset(env_seed(self._seed, env, int(self._incarnation[env])), episode)
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
        if self.restarts >= self._config.max_restarts:
            note = f"the budget of {self._config.max_restarts} restarts is spent (pool.max_restarts)"
            raise SimulatorError(failure, note) from error
        self.restarts += 1
        log.warning("replacing a simulator (%d of %d): %s", self.restarts, self._config.max_restarts, failure)
        self._steppers[env] = make_stepper(self._make_env(env), env, self._table)
        self._incarnation[env] += 1
        self._book.mark_lost(env)
        self._start(env)
