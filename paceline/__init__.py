"""Paceline trains reinforcement-learning agents in simulators that are slow, uneven or many.

    import paceline as pl

    run = pl.train("cartpole", steps=100_000)
    action, state = run.policy.predict(observation)

This module imports nothing heavy: simulator processes import it, and they do not need PyTorch. The names of the Python
API are imported on first use.
"""

import importlib
import os
import warnings
from typing import Any

__version__ = "0.1.0"

# PyTorch's threads wait for each other in a busy loop, which takes the cores from simulators and other processes.
# Threads that sleep are several times faster next to another busy process, and as fast on a quiet machine. PyTorch
# reads the variable when it is first imported. A value that the user has set stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Pools return some arrays read-only. No tensor made of such an array is written to.
warnings.filterwarnings("ignore", message="The given NumPy array is not writable")

API = {
    "train": "paceline.api.training",
    "RunResult": "paceline.api.training",
    "Session": "paceline.session",
    "Config": "paceline.config",
    "Callback": "paceline.callbacks",
    "load": "paceline.api.policy",
    "TrainedPolicy": "paceline.api.policy",
    "evaluate": "paceline.api.evaluation",
    "EvaluationResult": "paceline.api.evaluation",
    "make_pool": "paceline.pool.make",
    "PoolConfig": "paceline.pool.config",
    "UsageError": "paceline.errors",
    "PacelineError": "paceline.errors",
    "RunFinished": "paceline.resume",
    "SimulatorError": "paceline.errors",
    "CheckpointError": "paceline.checkpoint",
    "NonFiniteError": "paceline.learner.finite",
}
"""The public names, and the modules that define them."""

__all__ = [*API, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in API:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}; it has {', '.join(API)}")
    found = globals()[name] = getattr(importlib.import_module(API[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
