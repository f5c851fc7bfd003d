"""Simulators behind one protocol: `recv() -> StepBatch`, `send(actions, slots)`."""

from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.pool.protocol import Episode, Pool, PoolSpec, StepBatch

__all__ = ["Episode", "Pool", "PoolConfig", "PoolSpec", "StepBatch", "make_pool"]
