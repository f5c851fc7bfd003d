"""From a factory of batched simulators to a running pool."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gymnasium.vector import VectorEnv

from paceline.envs.factory import Factory
from paceline.envs.tensor import require_simulator
from paceline.pool.closing import close_all
from paceline.pool.config import PoolConfig
from paceline.pool.distinct import require_distinct
from paceline.pool.tensor import TensorPool, TensorSimulator
from paceline.pool.vector import VectorSimulator


def make_tensor_pool(factory: Factory, config: PoolConfig, seed: int, device: str) -> TensorPool:
    """One simulator per group of `config`, on `device`."""
    bounds = [config.num_envs * group // config.groups for group in range(config.groups + 1)]
    sizes = [end - begin for begin, end in pairwise(bounds)]
    make: Any = factory.make  # makes n environments on a device
    made: list[Any] = []
    try:
        for size in sizes:
            made.append(make(size, device))
        require_distinct(made)
        simulators = [_simulator(one, size, device, factory.label) for one, size in zip(made, sizes, strict=True)]
        return TensorPool(simulators, seed, record=config.cuda_graphs)
    except BaseException:
        close_all(made)
        raise


def _simulator(made: Any, num_envs: int, device: str, label: str) -> TensorSimulator:
    if isinstance(made, VectorEnv):
        return VectorSimulator(made, num_envs, device, label)
    require_simulator(made, label)
    return made
