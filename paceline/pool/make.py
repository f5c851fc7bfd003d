"""From an environment id and a configuration to a running pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline.envs.factory import Factory
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import Pool
from paceline.signals import handlers_kept
from paceline.telemetry.phases import Phases


def make_pool(
    env: str | Callable[..., Any] | Factory,
    config: PoolConfig | None = None,
    *,
    seed: int = 0,
    device: str = "cpu",
    phases: Phases | None = None,
) -> Pool:
    """A pool of `config.num_envs` environments `env`: an id, the user's own function, or a factory.

    `device` is for the simulators of a `tensor` pool; others run on the host. `phases` shows the progress of the start.
    """
    factory = resolve(env)
    config = config or PoolConfig()
    kind: str = config.kind
    # EnvPool cannot replace an environment that fails.
    restarts = kind == "auto" and config.on_error == "restart" and factory.steps_singly
    if factory.single is not None and (kind in ("serial", "process") or restarts):
        factory = factory.single
    if factory.backend is not None:
        if kind not in ("auto", factory.backend):
            raise UsageError(f"{factory.label or env} runs only in the {factory.backend!r} pool, not in {kind!r}")
        kind = factory.backend
    elif kind in ("envpool", "tensor"):
        raise UsageError(f"{factory.label or env} cannot run in the {kind!r} pool; allowed: auto, serial, process")
    with handlers_kept():  # simulators in this process must not take over Ctrl-C
        return _make(kind, factory, config, seed, device, phases)


def _make(kind: str, factory: Factory, config: PoolConfig, seed: int, device: str, phases: Phases | None) -> Pool:
    """A pool of this kind. Backends are imported here, because each needs packages that others do not."""
    if kind == "serial":
        from paceline.pool.serial import SerialPool

        return SerialPool(factory, config, seed, phases)
    if kind in ("process", "auto") and config.workers is not None:
        from paceline.pool.process import ProcessPool

        return ProcessPool(factory, config, seed, phases)
    if kind == "envpool":
        from paceline.pool.envpool import EnvPoolPool

        return EnvPoolPool(factory, config, seed)
    if kind == "tensor":
        from paceline.pool.make_tensor import make_tensor_pool

        return make_tensor_pool(factory, config, seed, device)
    from paceline.pool.auto import choose

    return choose(factory, config, seed, phases)
