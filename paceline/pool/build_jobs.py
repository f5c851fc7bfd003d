"""What a new worker process is sent: how it makes its environments, and where it runs."""

from __future__ import annotations

import pickle

import cloudpickle

from paceline.envs.factory import Factory
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig, available_core_ids


def packed_factory(factory: Factory) -> bytes:
    """The factory, as it is sent to workers."""
    try:
        return cloudpickle.dumps(factory)
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise UsageError(
            f"{factory.label or factory} cannot be sent to worker processes ({cause}); allowed: --pool.kind serial, or "
            "a function that makes there what cannot be pickled"
        ) from error


def build_job(factory: bytes, envs: list[int], config: PoolConfig, number: int) -> bytes:
    """The job of worker `number`, which makes the environments `envs`."""
    cores = available_core_ids()
    core = cores[number % len(cores)] if config.affinity else None
    return pickle.dumps({"factory": factory, "envs": envs, "nice": config.nice, "core": core})
