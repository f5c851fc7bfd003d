"""The seed and the number of restarts of each environment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.pool.seeds import env_seed
from paceline.pool.table import SlotTable


class Streams:
    """By environment. A restarted environment gets a new seed; its episode numbers continue."""

    def __init__(self, table: SlotTable, seed: int) -> None:
        self._table, self.seed = table, seed
        self.incarnation = np.zeros(table.spec.num_envs, np.int64)
        """How many times each was started anew under `seed`."""
        self._stale = np.zeros(table.spec.num_envs, bool)
        self.any_stale = False

    def begin(self, seed: int, incarnation: np.ndarray | None = None) -> None:
        """All streams start under `seed`, or continue in their `incarnation`."""
        self.seed = seed
        self.incarnation[:] = 0 if incarnation is None else incarnation
        self._stale[:] = False
        self.any_stale = False

    def renew(self, envs: Sequence[int]) -> None:
        """The next `jobs` of `envs` start them anew."""
        self.incarnation[envs] += 1

    def lose(self, envs: Sequence[int]) -> None:
        """The simulators of `envs` are gone; their pending results are invalid."""
        self.renew(envs)
        self._stale[envs] = True
        self.any_stale = True

    def alive(self, envs: list[int]) -> list[int]:
        """Of `envs`, those whose simulators are not lost."""
        return [env for env in envs if not self._stale[env]]

    def take_lost(self, envs: np.ndarray) -> tuple[list[int], np.ndarray]:
        """`envs` whose simulators were lost, which are to be started anew, and the others."""
        lost = self._stale[envs]
        self._stale[envs] = False
        self.any_stale = bool(self._stale.any())
        return envs[lost].tolist(), envs[~lost]

    def jobs(self, envs: Sequence[int]) -> list[tuple[int, int, int]]:
        """What it takes to start `envs`: each with its seed and the number of its first episode."""
        return [(env, self.seed_of(env), self._first_episode(env)) for env in envs]

    def seed_of(self, env: int) -> int:
        return env_seed(self.seed, env, int(self.incarnation[env]))

    def _first_episode(self, env: int) -> int:
        first_slot = env * self._table.spec.agents_per_env
        return int(self._table.episode[first_slot]) + 1 if self.incarnation[env] else 0
