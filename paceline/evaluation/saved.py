"""A run read back from its folder: its configuration, one of its checkpoints, and the policy in it."""

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
from paceline.trust import may_run


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """What a run's folder holds. Nothing in the folder is changed through it."""

    folder: Path
    config: Config
    checkpoint: str
    """The checkpoint's own name, step_N, whichever way it was asked for."""
    weights: dict[str, Tensor]
    trust: bool = False
    """Whether the user trusts the folder, even if somebody else wrote it."""

    @classmethod
    def load(cls, folder: Path, checkpoint: str = "latest", *, trust: bool = False) -> SavedRun:
        """Read a run's configuration and its checkpoint `latest`, `best` or `step_N`."""
        if re.fullmatch(r"latest|best|step_\d+", checkpoint) is None:
            raise UsageError(f"checkpoint {checkpoint!r} does not exist; allowed: latest, best, step_N")
        if not (folder / "config.json").is_file():
            raise UsageError(f"{folder} is not the folder of a run: there is no config.json in it")
        config = Config.load(folder / "config.json")
        loaded = CheckpointFolder(folder / "checkpoints").load(checkpoint)
        return cls(folder=folder, config=config, checkpoint=loaded.folder.name, weights=loaded.weights, trust=trust)

    def env(self) -> str:
        """The environment of the run; refused if it would run code that this user neither wrote nor trusts."""
        may_run(self.config.env, self.folder / "config.json", trust=self.trust)
        return self.config.env

    def device(self) -> torch.device:
        """Where the run was trained if this machine has that, and the CPU otherwise."""
        return choose_device("cpu" if self.config.device == "cpu" else "auto", 0)

    def pool(self, env: str, *, num_envs: int, seed: int, device: torch.device) -> Pool:
        """`num_envs` environments `env`, in the kind of pool that the run used if that can run them."""
        kind = self.config.pool.kind
        if kind in ("envpool", "tensor") or not resolve(env).steps_singly:
            kind = "auto"
        elif kind == "auto" and self.config.deterministic:
            kind = "serial"
        config = dataclasses.replace(self.config.pool, kind=kind, num_envs=num_envs, groups=1)
        return make_pool(env, config, seed=seed, device=str(device))

    def spec(self) -> PoolSpec:
        """What the run's observations and actions are, from one environment made for the purpose."""
        factory = resolve(self.env())
        config = PoolConfig(kind="serial" if factory.steps_singly else "auto", num_envs=1)
        with contextlib.closing(make_pool(factory, config)) as pool:
            return pool.spec

    def policy(self, spec: PoolSpec, device: torch.device) -> ActorCritic | DeterministicPolicy:
        """The trained policy, for the observations and actions of `spec`, which have to be those of the run."""
        classes = named_classes(self.config.policy, self.config.control)
        may_run(None, self.folder / "config.json", trust=self.trust, classes=classes)
        policy: ActorCritic | DeterministicPolicy
        if self.config.system == "d4pg":
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
