"""Evaluation over a fixed list of episodes, the same for every agent: each is played exactly once.

Legend: L episodes of the list, N streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.evaluation.baselines import agent_named
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import PointNav, load_bank

Act = Callable[[dict[str, Tensor], Tensor], Tensor]
"""From the observations of N streams and where an episode has just begun (bool [N]) to actions [N]."""

BIN_EDGES = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0, 20.0, 25.0, 30.0)
"""Of geodesic distances, in metres."""
SUMMARIZED = ("spl", "success", "soft_spl", "distance_to_goal", "collisions")
NUM_RESAMPLES = 2000


def evaluate_agent(
    agent: str,
    tier: str = "small",
    split: str = "val",
    episodes: int = 200,
    *,
    num_envs: int = 32,
    resolution: int = 64,
    device: str = "cpu",
    seed: int = 0,
    bank: SceneBank | None = None,
    config: PointNavConfig | None = None,
) -> dict[str, Any]:
    """How well a baseline does: `spl`, `success` and the like with confidence intervals, and by distance.

    `config` overrules everything but tier, split, resolution and the agent's own sensors; `bank` the scenes.
    """
    kind = agent_named(agent)
    config = replace(
        config or PointNavConfig(), tier=tier, split=split, resolution=resolution, sensors=kind.sensors, gps=True
    )
    bank = bank or load_bank(config)
    scenes, numbers = fixed_episodes(bank, episodes)
    simulator = PointNav(min(num_envs, episodes), device, config, bank=bank)
    measures = play(simulator, kind.make(simulator, seed).act, scenes, numbers)
    about = {"agent": agent, "env": "pointnav", "tier": tier, "split": split, "scenes": bank.num_scenes}
    return {**about, **summarize(measures)}


def fixed_episodes(bank: SceneBank, count: int) -> tuple[list[int], list[int]]:
    """Scenes and episodes of a list that begins the same whatever its length: scenes in turn, of each its episodes in
    an order in which the distances are mixed."""
    most = bank.num_scenes * bank.num_episodes
    if not 1 <= count <= most:
        raise UsageError(f"{count} episodes were asked for; allowed: 1 to {most}, which is all of {bank.label!r}")
    scenes = [index % bank.num_scenes for index in range(count)]
    orders = [np.random.default_rng((13, scene)).permutation(bank.num_episodes) for scene in range(bank.num_scenes)]
    return scenes, [int(orders[index % bank.num_scenes][index // bank.num_scenes]) for index in range(count)]


def play(simulator: PointNav, act: Act, scenes: Sequence[int], episodes: Sequence[int]) -> dict[str, np.ndarray]:
    """Play the listed episodes of the simulator's bank: their measures, [L] each, named as in `PointNav.last_measures`."""
    count, num = len(scenes), simulator.num_envs
    obs = simulator.load_episodes(scenes, episodes)
    began = torch.ones(num, dtype=torch.bool, device=simulator.device)
    measures: dict[str, np.ndarray] = {}
    at, done = np.arange(num), np.zeros(count, bool)  # the number in the list that each stream is playing
    while not done.all():
        step = simulator.step(act(obs, began))
        obs, began = step.obs, step.terminated | step.truncated
        ended = began.cpu().numpy()
        if ended.any():
            _note(simulator, measures, at, done, ended)
            at += num * ended
    return measures


def _note(
    simulator: PointNav, measures: dict[str, np.ndarray], at: np.ndarray, done: np.ndarray, ended: np.ndarray
) -> None:
    """Keep the measures of the listed episodes that this step ended."""
    streams = np.flatnonzero(ended & (at < len(done)))
    for name, values in simulator.last_measures.items():
        kept = measures.setdefault(name, np.zeros(len(done)))
        kept[at[streams]] = values.cpu().numpy()[streams]
    done[at[streams]] = True


def summarize(measures: dict[str, np.ndarray], seed: int = 0) -> dict[str, Any]:
    """Means with 95 % confidence intervals (percentile bootstrap over episodes), and by distance at the start."""
    count = len(measures["spl"])
    rng = np.random.default_rng(seed)
    table = np.stack([measures[name] for name in SUMMARIZED], 1)
    resampled = np.stack([table[rng.integers(0, count, count)].mean(0) for _ in range(NUM_RESAMPLES)])
    summary: dict[str, Any] = {"episodes": count}
    for name, means in zip(SUMMARIZED, resampled.T, strict=True):
        summary[name] = float(measures[name].mean())
        summary[f"{name}_ci95"] = [float(value) for value in np.quantile(means, (0.025, 0.975))]
    summary["by_distance"] = _by_distance(measures)
    return summary


def _by_distance(measures: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    bins = []
    for low, high in pairwise(BIN_EDGES):
        within = (measures["geodesic"] >= low) & (measures["geodesic"] < high)
        if within.any():
            means = {name: float(measures[name][within].mean()) for name in SUMMARIZED}
            bins.append({"from": low, "to": high, "episodes": int(within.sum()), **means})
    return bins
