"""Agents without training that need no goal, and how baselines play the fixed list of episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.navigation.config import NavigationConfig
from paceline.sims.navigation.evaluation.episode_list import about_scenes, listed_episodes, play
from paceline.sims.navigation.evaluation.measures import summarize
from paceline.sims.navigation.evaluation.policy_episodes import env_id_of
from paceline.sims.navigation.evaluation.task_evaluation import Baseline, TaskEvaluation
from paceline.sims.navigation.layout import FORWARD, RIGHT, STOP
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation, load_bank

STOP_CHANCE = 0.01


class RandomWalk:
    """Forward, left or right with equal probability."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        self._generator = torch.Generator(simulator.device).manual_seed(seed)

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        return torch.randint(FORWARD, RIGHT + 1, began.shape, generator=self._generator, device=began.device)


class RandomStops:
    """A random walk that stops with the probability `STOP_CHANCE` in every step. It does not notice goals."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        self._walk = RandomWalk(simulator, seed)
        self._generator = torch.Generator(simulator.device).manual_seed(seed + 1)

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        stops = torch.rand(began.shape, generator=self._generator, device=began.device) < STOP_CHANCE
        return torch.where(stops, STOP, self._walk.act(obs, began))


class AlwaysForward:
    """Always forward."""

    def __init__(self, simulator: Navigation, seed: int = 0) -> None:
        pass

    def act(self, obs: dict[str, Tensor], began: Tensor) -> Tensor:
        return torch.full_like(began, FORWARD, dtype=torch.int64)


def play_baseline(
    evaluation: TaskEvaluation,
    name: str,
    config: NavigationConfig,
    episodes: int | None = None,
    *,
    num_envs: int = 32,
    seed: int = 0,
    bank: SceneBank | None = None,
) -> dict[str, Any]:
    """Play the first `episodes` of the list that `config` names, or all: the summary of their measures.

    `bank` replaces the scenes of `config`.
    """
    baseline_named(evaluation, name)  # refused before scenes are generated
    bank = bank or load_bank(config)
    measures = baseline_measures(evaluation, name, config, bank, episodes, num_envs=num_envs, seed=seed)
    about = {"agent": name, "env": env_id_of(config), **about_scenes(config, bank)}
    return {**about, **summarize(evaluation, measures)}


def baseline_measures(
    evaluation: TaskEvaluation,
    name: str,
    config: NavigationConfig,
    bank: SceneBank,
    episodes: int | None = None,
    *,
    num_envs: int = 32,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Play the same episodes: the measures of each, as in `play`.

    The baseline's own options replace those of `config`.
    """
    kind = baseline_named(evaluation, name)
    scenes, numbers = listed_episodes(config, bank, episodes)
    simulator = Navigation(min(num_envs, len(scenes)), "cpu", replace(config, **kind.options), bank=bank)
    return play(simulator, kind.make(simulator, seed).act, scenes, numbers)


def baseline_named(evaluation: TaskEvaluation, name: str) -> Baseline:
    if name not in evaluation.baselines:
        raise UsageError(f"agent {name!r} does not exist; allowed: {', '.join(evaluation.baselines)}")
    return evaluation.baselines[name]
