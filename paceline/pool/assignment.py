"""Which worker owns which environments."""

from __future__ import annotations

import numpy as np

from paceline.pool.channel import pack_ints


class Assignment:
    """A fixed assignment of environments to workers."""

    def __init__(self, num_envs: int, num_workers: int, num_groups: int) -> None:
        self.envs_of = assign(num_envs, num_workers, num_groups)
        """The environments of every worker."""
        self.worker_of = np.empty(num_envs, np.int64)
        """The worker of every environment."""
        for number, envs in enumerate(self.envs_of):
            self.worker_of[envs] = number
        self._cache: dict[tuple[int, int], list[tuple[int, bytes]]] = {}

    def by_worker(self, envs: list[int]) -> dict[int, list[int]]:
        """`envs` split by worker."""
        parts: dict[int, list[int]] = {}
        for env, number in zip(envs, self.worker_of[envs].tolist(), strict=True):
            parts.setdefault(number, []).append(env)
        return parts

    def packed(self, envs: np.ndarray) -> list[tuple[int, bytes]]:
        """`envs` split by worker, as payloads of commands. Payloads of contiguous ranges are cached."""
        if len(envs) == 0:
            return []
        first, count = int(envs[0]), len(envs)
        contiguous = count == 1 or (int(envs[-1]) - first + 1 == count and bool((envs[1:] > envs[:-1]).all()))
        if contiguous and (known := self._cache.get((first, count))) is not None:
            return known
        payloads = [(number, pack_ints(part)) for number, part in self.by_worker(envs.tolist()).items()]
        if contiguous:
            self._cache[first, count] = payloads
        return payloads


def assign(num_envs: int, num_workers: int, num_groups: int) -> list[list[int]]:
    """The environments of each worker: an even, contiguous share of every group, and even shares in total.

    >>> assign(7, 2, 2)
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
