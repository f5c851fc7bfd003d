"""Play a fixed list of episodes with the policy of a run.

The list belongs to the split, not to the run: it does not depend on the scenes of training. With sampled actions, every
episode can be played several times. It still counts once, by its mean, so that intervals are over episodes.

Legend: L episodes of the list.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paceline.envs.ids import EnvId
from paceline.envs.registry import resolve
from paceline.errors import UsageError
from paceline.evaluation.evaluate import progress_bar
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.misfit import ImageMisfit
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.pool.protocol import PoolSpec
from paceline.run_records import scenes_label_of
from paceline.sims.navigation.config import PATHS, NavigationConfig
from paceline.sims.navigation.evaluation.episode_list import Act, ListSimulator, listed_episodes, play
from paceline.sims.navigation.evaluation.routes import Recorder, Route
from paceline.sims.navigation.family import MakeBatch
from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.simulator import Navigation, load_bank
from paceline.sims.navigation.tasks.protocol import Marks
from paceline.sims.navigation.tasks.table import TASKS

log = logging.getLogger(__name__)

SPLIT = "val"
"""The default split of evaluation."""
NUM_STREAMS = 256
"""Least number of streams at a time. Large batches are faster, although some streams end early."""


def env_config(env: str, split: str | None = None) -> NavigationConfig:
    """The options of an environment id. The split is `split`, or the id's own, or that of evaluation."""
    make = resolve(env).make
    if not isinstance(make, MakeBatch):
        raise UsageError(f"{env} is no navigation task; allowed: {', '.join(TASKS)}, as TASK:small or TASK:full")
    if not make.config.is_generated:
        if split is not None:
            raise UsageError(
                f"--split {split} has no effect in {env!r}, which names its scenes; allowed: an --env without plans or "
                "bank_file, or no --split"
            )
        return make.config
    named = EnvId.parse(env).options.get("split", SPLIT)
    return replace(make.config, split=split or named)


def env_id_of(config: NavigationConfig) -> str:
    """The environment id of a configuration."""
    return str(EnvId(config.task, "", config.options()))


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


def play_policy(
    run: SavedRun, config: NavigationConfig, options: EvaluationOptions, *, usual: int | None = None
) -> PlayedEpisodes:
    """Play the first `options.episodes` of the list that `config` names, `options.samples` times each. For `usual` see
    `fixed_episodes`."""
    device, samples = run.device(), options.samples
    bank = load_bank(config)
    warn_of_other_scenes(run, config, bank.label)
    scenes, numbers = listed_episodes(config, bank, options.episodes, usual=usual)
    streams = options.num_envs or max(run.config.pool.num_envs, NUM_STREAMS)
    simulator = Navigation(min(streams, samples * len(scenes)), device, config, bank=bank)
    try:
        act = policy_act(run, simulator, options)
    except ImageMisfit as error:
        raise _resolution_error(run, config, options.env or run.config.env) or error from error
    recorder = Recorder(simulator, act)
    measures = play_samples(simulator, recorder.act, scenes, numbers, samples)
    return PlayedEpisodes(
        config=config,
        bank=bank,
        scenes=scenes,
        numbers=numbers,
        measures=measures,
        marks=simulator.task.marks,
        routes=recorder.routes(len(scenes)),
    )


def warn_of_other_scenes(run: SavedRun, config: NavigationConfig, label: str) -> None:
    """Say that the run's own plans have changed since training, or that its file of scenes has another label."""
    own, trained = EnvId.parse(run.config.env).options, scenes_label_of(run.folder)
    is_own = not config.is_generated and all(own.get(name, "") == getattr(config, name) for name in PATHS)
    if is_own and trained not in (None, label):
        log.warning(
            "the scenes of %s have changed since %s was trained in them: they are %s, and were %s",
            config.plans or config.bank_file,
            run.folder,
            label,
            trained,
        )


def policy_act(run: SavedRun, simulator: Any, options: EvaluationOptions) -> Act:
    """The actions of a run's policy for the streams of a batched simulator."""
    spec = PoolSpec(
        observation_space=simulator.observation_space,
        action_space=simulator.action_space,
        num_envs=simulator.num_envs,
    )
    policy = run.policy(spec, simulator.device)
    player = Player(policy, simulator.num_envs, simulator.device, sampled=options.sampled, seed=options.seed)
    return lambda obs, began: next(iter(player.decide(obs, began).values()))


def policy_result(
    run: SavedRun, options: EvaluationOptions, about: Mapping[str, Any], summary: Mapping[str, Any]
) -> dict[str, Any]:
    """The result of an evaluation: `about` describes the scenes, `summary` the measures."""
    return {
        "run": str(run.folder),
        "checkpoint": run.checkpoint,
        "policy": run.policy_name,
        "env": options.env or run.config.env,
        **about,
        "seed": options.seed,
        "sampled": options.sampled,
        "samples": options.samples,
        **summary,
        "video": None if options.video is None else str(options.video),
    }


def play_samples(
    simulator: ListSimulator, act: Act, scenes: list[int], numbers: list[int], samples: int
) -> dict[str, np.ndarray]:
    """Play every episode of a list `samples` times: the means of their measures, [L] each. Shows a progress bar."""
    with progress_bar(samples * len(scenes)) as show:
        measures = play(simulator, act, scenes * samples, numbers * samples, show)
    return {name: values.reshape(samples, -1).mean(0) for name, values in measures.items()}


def _resolution_error(run: SavedRun, config: NavigationConfig, env: str) -> UsageError | None:
    """The error of a run with images of another resolution than those of `env`. None if that is not the reason."""
    trained, given = EnvId.parse(run.config.env), EnvId.parse(env)
    if trained.family not in TASKS:
        return None
    resolution = trained.options.get("resolution", TASKS[trained.family].config.resolution)
    if resolution == config.resolution:
        return None
    allowed = EnvId(given.family, given.name, {**given.options, "resolution": resolution})
    return UsageError(
        f"{run.folder} was trained with resolution {resolution}, and the images here have resolution "
        f'{config.resolution}; allowed: --env "{allowed}"'
    )
