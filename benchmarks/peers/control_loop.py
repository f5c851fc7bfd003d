"""Shared by the off-policy peers: environments, the replay, and the measurement of steps and updates per second."""

from __future__ import annotations

import json
import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch


class Settings(NamedTuple):
    """The workload, which is the same for all systems. One update follows each step of all environments."""

    env: str
    num_envs: int
    batch: int
    hidden: int
    device: str
    threads: int
    seconds: float
    """Length of the measurement."""
    minimum: int
    """Transitions before the first update."""


WARM_UP = 20
"""Updates before the measurement begins."""


class Meter:
    """Counts steps and updates from the end of the warm-up."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._begin, self._first = settings, 0.0, 0
        self._last = 0

    def goes_on(self, updates: int) -> bool:
        """Call after each step of all environments. False when the time is over."""
        self._last = updates
        if updates <= WARM_UP:
            self._first, self._begin = updates, self._now()
            return True
        return time.perf_counter() - self._begin < self._settings.seconds

    def print_result(self) -> None:
        rate = (self._last - self._first) / (self._now() - self._begin)
        found = {"updates_per_second": rate, "steps_per_second": rate * self._settings.num_envs}
        print("RESULT " + json.dumps(found), flush=True)

    def _now(self) -> float:
        if self._settings.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()


def make_env(env_id: str, index: int = 0) -> gymnasium.Env:
    """One environment in this process."""
    from paceline.envs.registry import resolve

    factory = resolve(env_id)
    return (factory.single or factory).make(index)


def make_envs(settings: Settings) -> gymnasium.vector.SyncVectorEnv:
    """All environments in this process, as CleanRL has them. The step that ends an episode also begins the next one."""
    from functools import partial

    same_step = gymnasium.vector.AutoresetMode.SAME_STEP
    makes = [partial(make_env, settings.env, index) for index in range(settings.num_envs)]
    return gymnasium.vector.SyncVectorEnv(makes, autoreset_mode=same_step)


class Transitions:
    """A plain replay in NumPy, which draws uniformly and copies every batch to the device."""

    def __init__(self, capacity: int, settings: Settings) -> None:
        self._columns: list[np.ndarray] = []
        self._capacity, self._settings, self._next, self.size = capacity, settings, 0, 0
        self._rng = np.random.default_rng(1)

    def add(self, *values: np.ndarray) -> None:
        """Rows of observations, actions, rewards, discounts and next observations."""
        if not self._columns:
            self._columns = [np.zeros((self._capacity, *value.shape[1:]), value.dtype) for value in values]
        rows = (self._next + np.arange(len(values[0]))) % self._capacity
        for column, value in zip(self._columns, values, strict=True):
            column[rows] = value
        self._next = (self._next + len(rows)) % self._capacity
        self.size = min(self.size + len(rows), self._capacity)

    def draw(self) -> list[torch.Tensor]:
        rows = self._rng.integers(self.size, size=self._settings.batch)
        return [torch.as_tensor(column[rows]).to(self._settings.device) for column in self._columns]


def last_observations(next_obs: np.ndarray, infos: dict[str, Any]) -> np.ndarray:
    """The observations that followed the actions, also where an episode ended."""
    ended = infos.get("_final_obs")
    if ended is None:
        return next_obs
    true = next_obs.copy()
    for row in np.flatnonzero(ended):
        true[row] = infos["final_obs"][row]
    return true
