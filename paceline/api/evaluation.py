"""`evaluate`: how well a policy does, over whole episodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.api.policy import TrainedPolicy, load
from paceline.errors import UsageError
from paceline.evaluation.evaluate import NUM_EPISODES, confidence_interval, play
from paceline.evaluation.evaluators import SEED
from paceline.evaluation.player import Player
from paceline.evaluation.seated_players import make_player
from paceline.keywords import keywords_in_messages
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.pool.protocol import Episode, Pool, PoolSpec


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
    policy: TrainedPolicy | str | Path,
    env: str | Callable[..., Any] | None = None,
    episodes: int = NUM_EPISODES,
    *,
    deterministic: bool = True,
    seed: int = SEED,
    num_envs: int = 8,
) -> EvaluationResult:
    """Play whole episodes with a policy, or with the latest one of a run folder.

    `env` is an id, a class, or a function that makes one environment; by default the run's own. Every environment plays
    its share of the `episodes`, so that short episodes do not count more than long ones.
    """
    if episodes < 1:
        raise UsageError(f"episodes is {episodes}; allowed: 1 or more")
    if not isinstance(policy, TrainedPolicy):
        policy = load(policy)
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


def _pool(policy: TrainedPolicy, env: str | Callable[..., Any] | None, num_envs: int, seed: int) -> Pool:
    if policy.run is None:
        if env is None:
            raise UsageError("this policy comes from no run; allowed: env=... with an environment")
        return make_pool(env, PoolConfig(num_envs=num_envs), seed=seed, device=str(policy.device))
    env = policy.run.env() if env is None else env
    return policy.run.pool(env, num_envs=num_envs, seed=seed, device=policy.device)


def _require_fit(policy: TrainedPolicy, spec: PoolSpec) -> None:
    """Refuse an environment with other observations or actions than the policy's."""
    for what, mine, theirs in (
        ("observations", policy.observation_space, spec.observation_space),
        ("actions", policy.action_space, spec.action_space),
    ):
        if mine != theirs:
            raise UsageError(f"the policy was trained with the {what} {mine}, and this environment has {theirs}")
