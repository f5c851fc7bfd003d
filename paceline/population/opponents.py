"""Fixed opponents of self-play: the policies of other runs, and scripted players."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.accel.config import ComputeConfig
from paceline.collect.actor import Actor
from paceline.errors import UsageError
from paceline.evaluation.saved import SavedRun, run_config
from paceline.experience.rows import as_tensor
from paceline.nets.ppo_policy import PPOPolicy
from paceline.own_code import is_path, load
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.telemetry.clock import Clock


def make_opponents(
    names: Sequence[str], spec: PoolSpec, device: torch.device, clock: Clock
) -> list[Actor | ScriptedActor]:
    """The opponents with these names: folders of runs, or package.module:Class."""
    return [_make(name, spec, device, clock) for name in names]


def require_opponents(names: Sequence[str], env: str) -> None:
    """Refuse opponents that do not exist, and runs of another game."""
    for name in names:
        if Path(name).is_dir():
            other = run_config(Path(name)).env
            if other.partition("?")[0] != env.partition("?")[0]:
                raise UsageError(
                    f"league.opponents: {name} was trained in {other}; allowed: runs of the same game, {env}"
                )
        else:
            if not is_path(name):
                raise UsageError(
                    f"league.opponents: {name!r} does not exist; allowed: the folder of a run, or package.module:Class"
                )
            _import(name)


def _import(name: str) -> Any:
    return load("opponent", name, "a class of a scripted opponent")


def _make(name: str, spec: PoolSpec, device: torch.device, clock: Clock) -> Actor | ScriptedActor:
    if not Path(name).is_dir():
        return ScriptedActor(name, spec, device)
    policy = SavedRun.load(Path(name)).policy(spec, device)
    if not isinstance(policy, PPOPolicy):
        raise UsageError(f"league.opponents: {name} was trained by d4pg; allowed: runs of ddppo, ver and appo")
    return Actor(policy, spec, device, ComputeConfig(cuda_graphs=False), clock)


class ScriptedActor:
    """Acts by a `ScriptedOpponent`, in the place of an `Actor`. It has no state."""

    def __init__(self, name: str, spec: PoolSpec, device: torch.device) -> None:
        self._player = _import(name)(spec.observation_space, spec.action_space)
        self._spec, self._device = spec, device

    @torch.no_grad()
    def decide(self, batch: StepBatch) -> Any:
        obs = {name: self._tensor(values) for name, values in batch.obs.items()}
        chosen = self._player(obs)
        if not isinstance(chosen, Mapping):
            chosen = {self._spec.actions[0].name: chosen}
        return SimpleNamespace(actions=chosen)

    def env_actions(self, chosen: Mapping[str, Tensor]) -> dict[str, Any]:
        if self._spec.on_device:
            return dict(chosen)
        return {name: values.cpu().numpy() for name, values in chosen.items()}

    def observe(self, batch: StepBatch) -> None:
        """Nothing to remember."""

    def remember_active(self, batch: StepBatch) -> None:
        """Nothing to remember."""

    def start_anew(self, slots: np.ndarray) -> None:
        """Nothing to forget."""

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Nothing to restore."""

    def _tensor(self, values: Any) -> Tensor:
        return values if self._spec.on_device else as_tensor(values).to(self._device)
