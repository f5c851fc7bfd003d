"""`SavedRun`: the configuration, a checkpoint and the policy of a run, read from its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from paceline.checkpoint import CheckpointFolder
from paceline.config import Config
from paceline.distributed.runtime import choose_device
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import named_classes
from paceline.nets.deterministic import DeterministicPolicy
from paceline.pool import Pool, make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec
from paceline.systems import SYSTEMS
from paceline.trust import may_run


def run_config(folder: Path) -> Config:
    """The configuration of the run in `folder`."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not the folder of a run: there is no config.json in it")
    return Config.load(folder / "config.json")


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A run folder, for reading only."""

    folder: Path
    config: Config
    checkpoint: str
    """Name of the checkpoint's folder, step_N, also for `latest` and `best`."""
    weights: dict[str, Tensor]
    trust: bool = False
    """Whether the user trusts the folder, even if somebody else wrote it."""

    @classmethod
    def load(cls, folder: Path, checkpoint: str = "latest", *, trust: bool = False) -> SavedRun:
        """Read a run's configuration and its checkpoint `latest`, `best` or `step_N`."""
        if re.fullmatch(r"latest|best|step_\d+", checkpoint) is None:
            raise UsageError(f"checkpoint {checkpoint!r} does not exist; allowed: latest, best, step_N")
        config = run_config(folder)
        loaded = CheckpointFolder(folder / "checkpoints").load(checkpoint)
        return cls(folder=folder, config=config, checkpoint=loaded.folder.name, weights=loaded.weights, trust=trust)

    def env(self) -> str:
        """The run's environment. Refused if it runs code that this user neither wrote nor trusts."""
        may_run(self.config.env, self.folder / "config.json", trust=self.trust)
        return self.config.env

    def device(self) -> torch.device:
        """The kind of device that the run was trained on, if this machine has it; otherwise the CPU."""
        return choose_device("cpu" if self.config.device == "cpu" else "auto", 0)

    def pool(self, env: str, *, num_envs: int, seed: int, device: torch.device) -> Pool:
        """A pool of `num_envs` environments, of the run's own kind if that kind supports `env`."""
        kind = self.config.pool.kind
        if kind in ("envpool", "tensor") or not resolve(env).steps_singly:
            kind = "auto"
        elif kind == "auto" and self.config.deterministic:
            kind = "serial"
        config = dataclasses.replace(self.config.pool, kind=kind, num_envs=num_envs, groups=1)
        return make_pool(env, config, seed=seed, device=str(device))

    def spec(self) -> PoolSpec:
        """The run's observations and actions, from one environment that is made and closed again."""
        factory = resolve(self.env())
        config = PoolConfig(kind="serial" if factory.steps_singly else "auto", num_envs=1)
        with contextlib.closing(make_pool(factory, config)) as pool:
            return pool.spec

    def policy(self, spec: PoolSpec, device: torch.device) -> ActorCritic | DeterministicPolicy:
        """The trained policy. The observations and actions of `spec` must be those of the run."""
        classes = named_classes(self.config.policy, self.config.control)
        may_run(None, self.folder / "config.json", trust=self.trust, classes=classes)
        policy: ActorCritic | DeterministicPolicy
        if SYSTEMS[self.config.system].family == "d4pg":
            policy = DeterministicPolicy(spec, self.config.control)
        else:
            policy = ActorCritic(spec, self.config.policy)
        try:
            policy.load_state_dict(self.weights)
        except RuntimeError as error:
            raise UsageError(
                f"the policy of {self.folder} was trained in {self.config.env} and does not fit these observations "
                f"and actions: {spec.observation_space}, {spec.action_space} ({str(error).splitlines()[-1].strip()})"
            ) from error
        return policy.to(device).eval().requires_grad_(False)
