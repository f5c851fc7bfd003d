"""From a factory of batched simulators to a running pool."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from gymnasium.vector import VectorEnv

from paceline.envs.factory import Factory
from paceline.envs.tensor import require_simulator
from paceline.pool.config import PoolConfig
from paceline.pool.tensor import TensorPool, TensorSimulator
from paceline.pool.vector import VectorSimulator


def make_tensor_pool(factory: Factory, config: PoolConfig, seed: int, device: str) -> TensorPool:
    """One simulator per group of `config`, on `device`."""
    bounds = [config.num_envs * group // config.groups for group in range(config.groups + 1)]
    simulators = [_make(factory, end - begin, device) for begin, end in pairwise(bounds)]
    return TensorPool(simulators, seed, record=config.cuda_graphs)


def _make(factory: Factory, num_envs: int, device: str) -> TensorSimulator:
    make: Any = factory.make  # makes n environments on a device
    made = make(num_envs, device)
    if isinstance(made, VectorEnv):
        return VectorSimulator(made, num_envs, device, factory.label)
    require_simulator(made, factory.label)
    return made
