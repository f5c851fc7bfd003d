"""Batched simulators in torch: `tensor:cartpole?max_episode_steps=200`. Nothing here imports torch before it is needed."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from paceline.envs.ids import EnvId
from paceline.envs.registry import Factory, check_options, closest
from paceline.errors import UsageError


@dataclass(frozen=True)
class Entry:
    """Where a simulator is and which keyword arguments it takes besides `num_envs` and `device`."""

    module: str
    name: str
    options: tuple[str, ...] = ()


SIMULATORS: dict[str, Entry] = {
    "cartpole": Entry("paceline.envs.tensor_cartpole", "TensorCartPole", ("max_episode_steps",)),
}


@dataclass(frozen=True)
class TensorTask:
    """A simulator and its options. As a factory's `make` it differs from other families: it makes n environments at
    once, on a device."""

    entry: Entry
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, num_envs: int, device: str = "cpu") -> Any:
        """A `TensorSimulator` (see `paceline.pool.tensor`) of `num_envs` environments on `device`."""
        simulator = getattr(importlib.import_module(self.entry.module), self.entry.name)
        return simulator(num_envs, device=device, **self.options)


def resolve(env_id: EnvId) -> Factory:
    entry = SIMULATORS.get(env_id.name)
    if entry is None:
        raise UsageError(
            f"there is no tensor simulator {env_id.name!r}{closest(env_id.name, SIMULATORS)}; "
            f"allowed: {', '.join(SIMULATORS)}"
        )
    check_options(env_id, entry.options)
    return Factory(make=TensorTask(entry, dict(env_id.options)), backend="tensor", label=str(env_id))


def names() -> Iterable[str]:
    return sorted(SIMULATORS)
