"""The evaluator of a navigation task: policies and baselines play the same fixed list of episodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.evaluation.evaluators import EvaluationOptions, Evaluator
from paceline.evaluation.report_page import ReportPart
from paceline.evaluation.saved import SavedRun
from paceline.sims.baseline_video import film_baseline
from paceline.sims.navigation.config import NavigationConfig
from paceline.sims.navigation.env import NavigationEnv
from paceline.sims.navigation.evaluation.baselines import baseline_named, play_baseline
from paceline.sims.navigation.evaluation.episode_list import about_scenes
from paceline.sims.navigation.evaluation.measures import summarize, table
from paceline.sims.navigation.evaluation.policy_episodes import (
    NUM_STREAMS,
    env_config,
    env_id_of,
    play_policy,
    policy_result,
    split_config,
)
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation


def evaluate_policy(evaluation: TaskEvaluation, folder: Path, options: EvaluationOptions) -> dict[str, Any]:
    """Play the first episodes of the split's list, or all, with the policy of the run in `folder`.

    `options.env` replaces the run's environment, including the scenes.
    """
    run = SavedRun.load(folder, options.checkpoint, policy=options.policy, trust=options.trust)
    if options.env is not None:
        config = env_config(options.env, options.split)
    else:
        config = split_config(env_config(run.config.env), options.split)
    if options.video is not None:
        from paceline.evaluation.video import film

        film(run, options.video, env=env_id_of(config), sampled=options.sampled, seed=options.seed)
    played = play_policy(run, config, options)
    about = about_scenes(config, played.bank)
    return policy_result(run, options, about, summarize(evaluation, played.measures))


def evaluate_baseline(evaluation: TaskEvaluation, name: str, options: EvaluationOptions) -> dict[str, Any]:
    """Play the same episodes with a baseline."""
    config = env_config(options.env or evaluation.task, options.split)
    num_envs = options.num_envs or NUM_STREAMS
    if options.video is not None:
        _film_baseline(evaluation, name, config, options)
    result = play_baseline(evaluation, name, config, options.episodes, num_envs=num_envs, seed=options.seed)
    return {**result, "video": None if options.video is None else str(options.video)}


def _film_baseline(evaluation: TaskEvaluation, name: str, config: NavigationConfig, options: EvaluationOptions) -> None:
    baseline = baseline_named(evaluation, name)
    own = replace(config, **baseline.options)
    env = NavigationEnv(config.task, render_mode="rgb_array", **own.options())
    assert options.video is not None
    film_baseline(env, baseline.make(env.simulator, options.seed), options.video, seed=options.seed)


def report(evaluation: TaskEvaluation, folder: Path, episodes: int | None) -> ReportPart:
    """Tiles and sections of the run's report. Matplotlib is imported only here."""
    from paceline.sims.navigation.evaluation.report import report_part

    return report_part(evaluation, folder, episodes)


def evaluator_of_task(evaluation: TaskEvaluation) -> Evaluator:
    return Evaluator(
        evaluate_policy=partial(evaluate_policy, evaluation),
        table=partial(table, evaluation),
        options=("split", "samples"),
        baselines=tuple(evaluation.baselines),
        evaluate_baseline=partial(evaluate_baseline, evaluation),
        rates=evaluation.rates,
        labels=evaluation.labels,
        report=partial(report, evaluation),
    )
