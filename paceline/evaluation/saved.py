"""`SavedRun`: the configuration, a checkpoint and one policy of a run, read from its folder."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from paceline.checkpoint import WEIGHTS, Checkpoint, CheckpointFolder
from paceline.config import Config
from paceline.distributed.runtime import choose_device
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.evaluation.misfit import misfit
from paceline.nets.config import named_classes
from paceline.nets.deterministic import DeterministicPolicy, make_deterministic_policy
from paceline.nets.make import make_policy
from paceline.nets.ppo_policy import PPOPolicy
from paceline.pool import Pool, make_pool
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import PoolSpec
from paceline.population.folders import require_run
from paceline.saved_spaces import load_spaces
from paceline.systems import SYSTEMS
from paceline.trust import may_run

PAST_SELVES = "past_selves"
"""The folder of past selves in a run folder."""


def is_policy_name(name: str) -> bool:
    """Whether `name` is a policy of a run: K, best, or K@STEP for a past self."""
    return re.fullmatch(r"best|\d+(@\d+)?", name) is not None


def run_config(folder: Path) -> Config:
    """The configuration of the run in `folder`."""
    require_run(folder)
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} is not the folder of a run: there is no config.json in it; allowed: a folder that "
            "`paceline train` has made"
        )
    return Config.load(folder / "config.json")


@dataclass(frozen=True, kw_only=True)
class SavedRun:
    """A run folder, for reading only."""

    folder: Path
    config: Config
    checkpoint: str
    """Name of the checkpoint's folder, step_N, also for `latest` and `best`."""
    weights: dict[str, Tensor]
    policy_name: str = "0"
    """The number of the policy; K@STEP for a past self."""
    ranking: tuple[int, ...] = (0,)
    """All policies of the run, best first."""
    trust: bool = False
    """Whether the user trusts the folder, even if somebody else wrote it."""

    @classmethod
    def load(
        cls, folder: Path, checkpoint: str = "latest", *, policy: str | None = None, trust: bool = False
    ) -> SavedRun:
        """Read a run's configuration and a policy of its checkpoint `latest`, `best` or `step_N`. The folder of a
        pretrained policy has its weights directly in it.

        `policy` is a number, `best` for the one with the highest objective (the default), or K@STEP for a past self.
        """
        if re.fullmatch(r"latest|best|step_\d+", checkpoint) is None:
            raise UsageError(f"checkpoint {checkpoint!r} does not exist; allowed: latest, best, step_N")
        config = run_config(folder)
        if (folder / WEIGHTS).is_file():
            if policy not in (None, "best", "0"):
                raise UsageError(f"{folder} has no policy {policy}; allowed: 0, the only one")
            weights = read_weights(folder / WEIGHTS)
            return cls(folder=folder, config=config, checkpoint="pretrained", weights=weights, trust=trust)
        loaded = CheckpointFolder(folder / "checkpoints").load(checkpoint)
        name = policy or "best"
        if not is_policy_name(name):
            raise UsageError(f"policy {name!r} does not exist; allowed: {_allowed_policies(folder, loaded)}")
        ranking = ranking_of(loaded)
        if name == "best":
            name = str(ranking[0])
        return cls(
            folder=folder,
            config=config,
            checkpoint=loaded.folder.name,
            weights=_weights(folder, loaded, name),
            policy_name=name,
            ranking=ranking,
            trust=trust,
        )

    def env(self) -> str:
        """The run's environment. Refused if it runs code that this user neither wrote nor trusts."""
        may_run(self.config.env, self.folder / "config.json", trust=self.trust)
        return self.config.env

    def device(self) -> torch.device:
        """The kind of device that the run was trained on, if this machine has it; otherwise the CPU."""
        return choose_device("cpu" if self.config.device == "cpu" else "auto")

    def pool(self, env: str | Callable[..., Any], *, num_envs: int, seed: int, device: torch.device) -> Pool:
        """A pool of `num_envs` environments, of the run's own kind if that kind supports `env`."""
        kind = self.config.pool.kind
        if kind in ("envpool", "tensor") or not resolve(env).steps_singly:
            kind = "auto"
        elif kind == "auto" and self.config.deterministic:
            kind = "serial"
        config = dataclasses.replace(self.config.pool, kind=kind, num_envs=num_envs, groups=1)
        return make_pool(env, config, seed=seed, device=str(device))

    def spec(self) -> PoolSpec:
        """The run's observations and actions. A run of an older version has not saved them: an environment is made."""
        saved = self._saved_spec()
        if saved is not None:
            return saved
        factory = resolve(self.env())
        config = PoolConfig(kind="serial" if factory.steps_singly else "auto", num_envs=1)
        with contextlib.closing(make_pool(factory, config)) as pool:
            return self.seen_by_policy(pool.spec)

    def _saved_spec(self) -> PoolSpec | None:
        saved = load_spaces(self.folder, int(self.policy_name.partition("@")[0]))
        return saved and PoolSpec(observation_space=saved[0], action_space=saved[1], num_envs=1)

    @property
    def num_policies(self) -> int:
        return len(self.ranking)

    def kind_of_policy(self, spec: PoolSpec) -> int:
        """Which kind of agents the policy plays."""
        return int(self.policy_name.partition("@")[0]) % len(spec.kinds)

    def seen_by_policy(self, spec: PoolSpec) -> PoolSpec:
        """The observations and actions of the policy's own kind of agents."""
        return spec if len(spec.kinds) == 1 else spec.of_kind(spec.kinds[self.kind_of_policy(spec)])

    def team(self, spec: PoolSpec) -> list[SavedRun]:
        """By kind of agents: the policy that plays it. Beside this policy these are the best of the other kinds."""
        count, own = len(spec.kinds), self.kind_of_policy(spec)
        if self.num_policies < count:
            raise UsageError(
                f"{self.folder} has {self.num_policies} policies, and the environment {count} kinds of agents"
            )
        best = [next(policy for policy in self.ranking if policy % count == kind) for kind in range(count)]
        return [
            self if kind == own else SavedRun.load(self.folder, self.checkpoint, policy=str(policy), trust=self.trust)
            for kind, policy in enumerate(best)
        ]

    def policy(self, spec: PoolSpec, device: torch.device) -> PPOPolicy | DeterministicPolicy:
        """The trained policy. The observations and actions of `spec` must be those of the run, or of the policy's kind
        of agents."""
        spec = self.seen_by_policy(spec)
        classes = named_classes(self.config.policy, self.config.control)
        may_run(None, self.folder / "config.json", trust=self.trust, classes=classes)
        try:
            policy = untrained_policy(spec, self.config)
            policy.load_state_dict(self.weights)
        except (RuntimeError, UsageError) as error:
            run = f"the policy of {self.folder}, trained in {self.config.env},"
            raise misfit(run, self._saved_spec(), spec, error, classes) from error
        return policy.to(device).eval().requires_grad_(False)


def untrained_policy(spec: PoolSpec, config: Config) -> PPOPolicy | DeterministicPolicy:
    """A policy with the network of a run."""
    if SYSTEMS[config.system].family == "d4pg":
        return make_deterministic_policy(spec, config.control, config.policy)
    return make_policy(spec, config.policy)


def past_selves(folder: Path) -> list[tuple[int, int]]:
    """Step and policy of every past self in a run folder, ascending."""
    names = [path.stem for path in (folder / PAST_SELVES).glob("policy_*_step_*.safetensors")]
    found = [re.fullmatch(r"policy_(\d+)_step_(\d+)", name) for name in names]
    return sorted((int(match[2]), int(match[1])) for match in found if match is not None)


def ranking_of(checkpoint: Checkpoint) -> tuple[int, ...]:
    """The policies by the mean objective of their latest episodes, best first. Those without one come last."""
    means: dict[int, float] = {}
    for policy, sums in enumerate(checkpoint.state.get("population", {}).get("objectives", [])):
        if sums:
            means[policy] = sum(total for _, total in sums) / sum(count for count, _ in sums)
    return tuple(sorted(range(checkpoint.num_policies), key=lambda policy: -means.get(policy, -math.inf)))


def _weights(folder: Path, checkpoint: Checkpoint, name: str) -> dict[str, Tensor]:
    """The weights of a policy or a past self, by its name."""
    policy, _, step = name.partition("@")
    if not step:
        if int(policy) >= checkpoint.num_policies:
            raise UsageError(f"{folder} has no policy {policy}; allowed: {_allowed_policies(folder, checkpoint)}")
        return checkpoint.weights_of(int(policy))
    path = folder / PAST_SELVES / f"policy_{int(policy)}_step_{int(step)}.safetensors"
    if not path.is_file():
        raise UsageError(f"{folder} has no past self {name}; allowed: {_allowed_policies(folder, checkpoint)}")
    return read_weights(path)


def read_weights(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"the policy {path} cannot be read: {error}") from error


def _allowed_policies(folder: Path, checkpoint: Checkpoint) -> str:
    last = checkpoint.num_policies - 1
    allowed = ["best", "0" if last == 0 else f"0 to {last}"]
    if steps := sorted({step for step, _ in past_selves(folder)}):
        shown = ", ".join(map(str, steps if len(steps) <= 6 else [*steps[:5], "...", steps[-1]]))
        allowed.append(f"K@STEP for a past self (steps {shown})")
    return ", ".join(allowed)
