"""`evaluate`: how well a policy does, over whole episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from paceline.api.policy import TrainedPolicy, load
from paceline.api.training import RunResult
from paceline.checks import as_number
from paceline.errors import UsageError
from paceline.evaluation.evaluate import NUM_EPISODES, confidence_interval, play
from paceline.evaluation.evaluators import SEED
from paceline.evaluation.player import Player
from paceline.evaluation.seated_players import make_player
from paceline.keywords import keywords_in_messages
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.pool.protocol import Episode, Pool, PoolSpec
from paceline.pool.spaces import Leaf


@dataclass(frozen=True)
class Estimate:
    """A mean over episodes, with its 95 % interval by the percentile bootstrap."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Estimate:
        data = np.asarray(values, np.float64)
        low, high = confidence_interval(data) or (float(data.mean()), float(data.mean()))
        return cls(float(data.mean()), low, high)

    def __str__(self) -> str:
        return f"{self.mean:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class EvaluationResult:
    """The episodes that a policy has played."""

    episodes: list[Episode]
    """With `episode_return`, `length` and the numbers of the last `info`."""
    num_lost: int
    """Episodes that ended with a failure of their simulator. Others were played instead."""

    @property
    def episode_return(self) -> Estimate:
        return Estimate.of([episode.episode_return for episode in self.episodes])

    @property
    def length(self) -> Estimate:
        return Estimate.of([float(episode.length) for episode in self.episodes])

    @property
    def info(self) -> dict[str, Estimate]:
        """By name: the numbers in last `info`s, over the episodes that have them."""
        names = sorted({name for episode in self.episodes for name in episode.info})
        return {name: Estimate.of([e.info[name] for e in self.episodes if name in e.info]) for name in names}


@keywords_in_messages
def evaluate(
    policy: TrainedPolicy | RunResult | str | Path,
    env: str | Callable[..., Any] | None = None,
    episodes: int = NUM_EPISODES,
    *,
    deterministic: bool = True,
    seed: int = SEED,
    num_envs: int = 8,
) -> EvaluationResult:
    """Play whole episodes with a policy, with that of a run, or with the latest one of a run folder.

    `env` is an id, a class, or a function that makes one environment; by default the run's own. Every environment plays
    its share of the `episodes`, so that short episodes do not count more than long ones.
    """
    episodes, num_envs = as_number(int, episodes, "episodes"), as_number(int, num_envs, "num_envs")
    for name, count in (("episodes", episodes), ("num_envs", num_envs)):
        if count < 1:
            raise UsageError(f"{name} is {count}; allowed: 1 or more")
    if env is None and isinstance(policy, RunResult):
        env = policy.env  # it may be an object that cannot be imported
    policy = _loaded(policy)
    device = policy.device
    with contextlib.closing(_pool(policy, env, min(num_envs, episodes), seed)) as pool:
        if policy.run is not None and len(pool.spec.kinds) > 1:
            played = play(
                pool, make_player(policy.run, pool.spec, device, sampled=not deterministic, seed=seed), episodes
            )
        else:
            _require_fit(policy, pool.spec)
            player = Player(policy.network, pool.spec.num_slots, device, sampled=not deterministic, seed=seed)
            played = play(pool, player, episodes)
    return EvaluationResult(played.episodes, played.num_lost)


def _loaded(policy: TrainedPolicy | RunResult | str | Path) -> TrainedPolicy:
    if isinstance(policy, TrainedPolicy):
        return policy
    if isinstance(policy, RunResult):
        return policy.policy
    if isinstance(policy, str | Path):
        return load(policy)
    raise UsageError(
        f"policy is a {type(policy).__name__}; allowed: what train and load return, or the folder of a run"
    )


def _pool(policy: TrainedPolicy, env: str | Callable[..., Any] | None, num_envs: int, seed: int) -> Pool:
    if policy.run is None:
        if env is None:
            raise UsageError("this policy comes from no run; allowed: env=... with an environment")
        return make_pool(env, PoolConfig(num_envs=num_envs), seed=seed, device=str(policy.device))
    env = policy.run.env() if env is None else env
    return policy.run.pool(env, num_envs=num_envs, seed=seed, device=policy.device)


def _require_fit(policy: TrainedPolicy, spec: PoolSpec) -> None:
    """Refuse an environment with other actions than the policy's, or with other observations, except for bounds."""
    for what, mine, theirs, fits in (
        ("observations", policy.observation_space, spec.observation_space, _form(policy.obs) == _form(spec.obs)),
        ("actions", policy.action_space, spec.action_space, policy.action_space == spec.action_space),
    ):
        if not fits:
            raise UsageError(f"the policy was trained with the {what} {mine}, and this environment has {theirs}")


def _form(leaves: Iterable[Leaf]) -> list[Any]:
    """All about the leaves but the bounds of Boxes, by path."""
    of_boxes = {leaf.path: (leaf.shape, leaf.source.dtype) for leaf in leaves if isinstance(leaf.source, spaces.Box)}
    return [(leaf.path, of_boxes.get(leaf.path, leaf.source)) for leaf in leaves]
