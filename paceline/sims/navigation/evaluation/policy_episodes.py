"""Play a fixed list of episodes with the policy of a run.

The list belongs to the split, not to the run: it does not depend on the scenes of training. With sampled actions, every
episode can be played several times. It still counts once, by its mean, so that intervals are over episodes.

Legend: L episodes of the list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import numpy as np

from paceline.envs.ids import EnvId
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.evaluation.evaluate import progress_bar
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.pool.protocol import PoolSpec
from paceline.sims.navigation.config import NavigationConfig
from paceline.sims.navigation.evaluation.episode_list import listed_episodes, play
from paceline.sims.navigation.evaluation.routes import Recorder, Route
from paceline.sims.navigation.family import MakeBatch
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation, load_bank
from paceline.sims.navigation.tasks.protocol import Marks
from paceline.sims.navigation.tasks.table import TASKS

SPLIT = "val"
"""The default split of evaluation."""
NUM_STREAMS = 256
"""Least number of streams at a time. Large batches are faster, although some streams end early."""


def env_config(env: str, split: str | None = None) -> NavigationConfig:
    """The options of an environment id. The split is `split`, or the id's own, or that of evaluation."""
    make = resolve(env).make
    if not isinstance(make, MakeBatch):
        raise UsageError(f"{env} is no navigation task; allowed: {', '.join(TASKS)}, as TASK:small or TASK:full")
    named = EnvId.parse(env).options.get("split", SPLIT)
    return replace(make.config, split=split or named)


def env_id_of(config: NavigationConfig) -> str:
    """The environment id of a configuration."""
    usual = asdict(type(config)())
    return str(EnvId(config.task, "", {name: value for name, value in asdict(config).items() if value != usual[name]}))


def split_config(config: NavigationConfig, split: str | None = None) -> NavigationConfig:
    """The task of training in the default scenes of a split, which are the same for all runs. A run on floor plans
    plays in these, unless a split is named."""
    if config.plans and split is None:
        return config
    usual = type(config)()
    if config.bank_file:  # the tier is that of the file
        config = replace(config, tier=load_bank(config).tier)
    return replace(config, split=split or SPLIT, scenes=usual.scenes, bank_seed=usual.bank_seed, bank_file="", plans="")


@dataclass(frozen=True, kw_only=True)
class PlayedEpisodes:
    """The episodes of a list, played by a policy."""

    config: NavigationConfig
    bank: SceneBank
    scenes: list[int]
    numbers: list[int]
    """[L]: the episodes' scenes, and their numbers in these scenes."""
    measures: dict[str, np.ndarray]
    """[L] each, means over the samples; named as in `Navigation.last_measures`."""
    marks: Callable[[int], Marks]
    """What maps show of the episode in a row of the bank, scene * E + number; see `Task.marks`."""
    routes: list[Route]
    """Of the first sample of every episode."""

    def marks_of(self, number: int) -> Marks:
        """What maps show of episode `number` of the list."""
        return self.marks(self.scenes[number] * self.bank.num_episodes + self.numbers[number])


def play_policy(run: SavedRun, config: NavigationConfig, options: EvaluationOptions) -> PlayedEpisodes:
    """Play the first `options.episodes` of the list that `config` names, or all, `options.samples` times each."""
    device, samples = run.device(), options.samples
    bank = load_bank(config)
    scenes, numbers = listed_episodes(config, bank, options.episodes)
    streams = options.num_envs or max(run.config.pool.num_envs, NUM_STREAMS)
    simulator = Navigation(min(streams, samples * len(scenes)), device, config, bank=bank)
    spec = PoolSpec(
        observation_space=simulator.observation_space,
        action_space=simulator.action_space,
        num_envs=simulator.num_envs,
    )
    policy = run.policy(spec, device)
    player = Player(policy, simulator.num_envs, device, sampled=options.sampled, seed=options.seed)
    recorder = Recorder(simulator, lambda obs, began: next(iter(player.decide(obs, began).values())))
    with progress_bar(samples * len(scenes)) as show:
        measures = play(simulator, recorder.act, scenes * samples, numbers * samples, show)
    return PlayedEpisodes(
        config=config,
        bank=bank,
        scenes=scenes,
        numbers=numbers,
        measures={name: values.reshape(samples, -1).mean(0) for name, values in measures.items()},
        marks=simulator.task.marks,
        routes=recorder.routes(len(scenes)),
    )
