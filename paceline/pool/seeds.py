"""Seeds of environments, independent of how environments are spread over processes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.pool.table import SlotTable


def pool_seed(seed: int, rank: int, step: int = 0) -> int:
    """The seed of a rank's pool. A run that goes on from `step` does not repeat the episodes of its beginning."""
    first = seed + 1000 * rank
    return first if step == 0 else int(np.random.SeedSequence((first, step)).generate_state(1)[0]) >> 1


def env_seed(seed: int, env: int, incarnation: int = 0) -> int:
    """The seed of environment `env` under the pool's `seed`. Every restart (incarnation) gets another seed.

    It has 31 bits because some simulators accept no more.
    """
    return int(np.random.SeedSequence((seed, env, incarnation)).generate_state(1)[0]) >> 1


class EnvSeeds:
    """The seed and the number of restarts of each environment. Episode numbers continue over a restart."""

    def __init__(self, table: SlotTable, seed: int) -> None:
        self._table, self.seed = table, seed
        self.incarnation = np.zeros(table.spec.num_envs, np.int64)
        """By environment: restarts under `seed`."""
        self._lost = np.zeros(table.spec.num_envs, bool)
        self.any_lost = False

    def begin(self, seed: int, incarnation: np.ndarray | None = None) -> None:
        """Start all environments under `seed`, or continue in their `incarnation`."""
        self.seed = seed
        self.incarnation[:] = 0 if incarnation is None else incarnation
        self._lost[:] = self.any_lost = False

    def renew(self, envs: Sequence[int]) -> None:
        """The next reset of `envs` uses a new seed."""
        self.incarnation[envs] += 1

    def mark_lost(self, envs: Sequence[int]) -> None:
        """The simulators of `envs` are gone. Their results are invalid until the environments are reset."""
        self.renew(envs)
        self._lost[envs] = self.any_lost = True

    def not_lost(self, envs: list[int]) -> list[int]:
        return [env for env in envs if not self._lost[env]]

    def take_lost(self, envs: np.ndarray) -> tuple[list[int], np.ndarray]:
        """Split `envs` into lost ones, which the caller now resets, and others."""
        lost = self._lost[envs]
        self._lost[envs] = False
        self.any_lost = bool(self._lost.any())
        return envs[lost].tolist(), envs[~lost]

    def reset_jobs(self, envs: Sequence[int]) -> list[tuple[int, int, int]]:
        """(environment, seed, number of the first episode) for the next reset of each of `envs`."""
        return [(env, self.seed_of(env), self._first_episode(env)) for env in envs]

    def seed_of(self, env: int) -> int:
        return env_seed(self.seed, env, int(self.incarnation[env]))

    def _first_episode(self, env: int) -> int:
        first_slot = env * self._table.spec.agents_per_env
        return int(self._table.episode[first_slot]) + 1 if self.incarnation[env] else 0
