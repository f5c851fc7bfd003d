"""A fixed list of episodes, the same for every agent. Each of them is played exactly once.

Legend: L episodes of the list, N streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice, zip_longest
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.pool.tensor import TensorStep
from paceline.sims.navigation.config import NavigationConfig
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation
from paceline.wording import counted

Act = Callable[[dict[str, Tensor], Tensor], Tensor]
"""From the observations of N streams and a mask of episode starts (bool [N]) to actions [N, ...]."""


class EpisodeBank(Protocol):
    """A bank whose episodes can be listed."""

    @property
    def label(self) -> str: ...
    @property
    def num_scenes(self) -> int: ...
    @property
    def num_episodes(self) -> int:
        """Per scene."""
        ...


class ListSimulator(Protocol):
    """A simulator that can play a list of episodes."""

    num_envs: int
    device: torch.device
    last_measures: dict[str, Tensor]

    def load_episodes(self, scenes: Sequence[int], episodes: Sequence[int]) -> dict[str, Tensor]: ...
    def step(self, actions: Tensor) -> TensorStep: ...


def about_scenes(config: NavigationConfig, bank: SceneBank) -> dict[str, Any]:
    """What a result says about the scenes that were played in."""
    return {
        "tier": bank.tier,
        "split": config.split if config.is_generated else None,
        "scenes": bank.num_scenes,
        "plans": config.plans or None,
        "bank_file": config.bank_file or None,
        "scenes_label": bank.label,
    }


def scenes_in_words(about: Mapping[str, Any]) -> str:
    """The same for the user."""
    count = about["scenes"]
    if about["plans"]:
        return f"{counted(count, 'floor plan')} from {about['plans']}"
    if about["bank_file"]:
        return f"{counted(count, 'scene')} from {about['bank_file']} ({about['tier']})"
    return f"{about['split']} ({about['tier']}, {counted(count, 'scene')})"


def listed_episodes(
    config: NavigationConfig, bank: SceneBank, count: int | None = None, *, usual: int | None = None
) -> tuple[list[int], list[int]]:
    """`fixed_episodes` of the task, in the scenes of `bank` that have any."""
    simulator = Navigation(1, bank.device, replace(config, sensors="blind"), bank=bank)
    return fixed_episodes(bank, count, simulator.playable_episodes(), usual=usual)


def fixed_episodes(
    bank: EpisodeBank,
    count: int | None = None,
    playable: Mapping[int, int] | None = None,
    *,
    usual: int | None = None,
) -> tuple[list[int], list[int]]:
    """The scenes and episode numbers of the first `count` episodes of the list. Without a `count`: of the first
    `usual`, or of all if there are fewer.

    The list takes scenes in turn. Within a scene, episodes are shuffled, so that a short list has all distances.
    `playable` are the scenes in the list, each with the number of its first episodes that are in it. None: all.
    """
    playable = dict.fromkeys(range(bank.num_scenes), bank.num_episodes) if playable is None else playable
    most = sum(playable.values())
    count = min(most, usual or most) if count is None else count
    if not 1 <= count <= most:
        raise UsageError(f"{count} episodes were asked for; allowed: 1 to {most}, which is all of {bank.label!r}")
    shuffled = {scene: np.random.default_rng((13, scene)).permutation(bank.num_episodes) for scene in playable}
    orders = [order[order < playable[scene]].tolist() for scene, order in shuffled.items()]
    rounds = zip_longest(*orders)  # a scene with fewer episodes leaves out the last rounds
    listed = ((scene, one) for each in rounds for scene, one in zip(playable, each, strict=True) if one is not None)
    scenes, episodes = zip(*islice(listed, count), strict=True)
    return list(scenes), list(episodes)


def play(
    simulator: ListSimulator,
    act: Act,
    scenes: Sequence[int],
    episodes: Sequence[int],
    show: Callable[[int], None] | None = None,
) -> dict[str, np.ndarray]:
    """Play the listed episodes: their measures, [L] each, named as in the simulator's `last_measures`.

    `show` is called with the number of finished episodes.
    """
    count, num = len(scenes), simulator.num_envs
    obs = simulator.load_episodes(scenes, episodes)
    began = torch.ones(num, dtype=torch.bool, device=simulator.device)
    measures: dict[str, np.ndarray] = {}
    at, done = np.arange(num), np.zeros(count, bool)  # `at`: the position in the list that each stream plays
    while not done.all():
        step = simulator.step(act(obs, began))
        obs, began = step.obs, step.terminated | step.truncated
        ended = began.cpu().numpy()
        if not ended.any():
            continue
        streams = np.flatnonzero(ended & (at < count))
        for name, values in simulator.last_measures.items():
            measures.setdefault(name, np.zeros(count))[at[streams]] = values.cpu().numpy()[streams]
        done[at[streams]] = True
        at += num * ended
        if show is not None:
            show(int(done.sum()))
    return measures
