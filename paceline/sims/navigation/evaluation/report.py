"""What navigation adds to a report: measures in unseen apartments, what limits the policy, maps, failures and views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.envs.ids import EnvId
from paceline.evaluation import report_page
from paceline.evaluation.evaluators import REPORT_EPISODES, EvaluationOptions
from paceline.evaluation.report_page import ReportPart
from paceline.evaluation.saved import SavedRun
from paceline.sims.navigation.evaluation.baselines import baseline_measures
from paceline.sims.navigation.evaluation.measures import summarize
from paceline.sims.navigation.evaluation.policy_episodes import (
    NUM_STREAMS,
    PlayedEpisodes,
    env_config,
    play_policy,
    split_config,
)
from paceline.sims.navigation.evaluation.report_failures import failures
from paceline.sims.navigation.evaluation.report_limits import limits
from paceline.sims.navigation.evaluation.report_maps import chosen, trajectories
from paceline.sims.navigation.evaluation.report_measures import row, tile
from paceline.sims.navigation.evaluation.report_sizes import by_size, distributions
from paceline.sims.navigation.evaluation.report_views import views
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation
from paceline.wording import counted

NUM_MAPS = 6


def report_part(evaluation: TaskEvaluation, folder: Path, episodes: int | None) -> ReportPart:
    """Play `episodes` episodes of the val split, or the usual number, with the latest checkpoint and with baselines,
    and show them."""
    run = SavedRun.load(folder)
    config = split_config(env_config(run.config.env))
    played = play_policy(run, config, EvaluationOptions(episodes=episodes), usual=REPORT_EPISODES)
    summary = summarize(evaluation, played.measures)
    baselines = {
        label: baseline_measures(evaluation, name, config, played.bank, len(played.numbers), num_envs=NUM_STREAMS)
        for name, label in evaluation.in_report.items()
    }
    shown = chosen(played.measures, evaluation.order, NUM_MAPS)
    sections = [
        _evaluation(evaluation, run, played, summary, baselines),
        *limits(evaluation, played),
        trajectories(evaluation, played, shown),
        *failures(evaluation, played),
        views(evaluation, played, shown),
    ]
    where = "in your plans" if config.plans else f"on {config.split}"
    return ReportPart([tile(evaluation, name, summary, where) for name in evaluation.main], sections)


def _scenes(run: SavedRun, played: PlayedEpisodes, episodes: int) -> str:
    """The scenes of the first `episodes` episodes, and whether training has seen them."""
    count = min(played.bank.num_scenes, episodes)
    if played.config.plans:
        return f"{counted(count, 'floor plan')} from {played.config.plans}"
    where = f"{counted(count, 'apartment')} of the {played.config.split} split"
    named = EnvId.parse(run.config.env).options.get("split", "train")
    is_new = env_config(run.config.env).is_generated and named != played.config.split
    return f"{where}, which training has never seen" if is_new else where


def _evaluation(
    evaluation: TaskEvaluation,
    run: SavedRun,
    played: PlayedEpisodes,
    summary: dict[str, Any],
    baselines: dict[str, dict[str, np.ndarray]],
) -> str:
    lead = (
        f"{counted(summary['episodes'], 'episode')} in {_scenes(run, played, summary['episodes'])}, played by "
        f"{run.checkpoint} with the most likely actions. {evaluation.about_baselines} Intervals are 95 % confidence "
        "intervals."
    )
    results = {"this policy": summary, **{name: summarize(evaluation, each) for name, each in baselines.items()}}
    rows = [row(evaluation, name, result) for name, result in results.items()]
    header = ("", *evaluation.labels.values())
    return report_page.section(
        "evaluation",
        f"Navigation in {'your floor plans' if played.config.plans else 'unseen apartments'}",
        lead,
        report_page.table(header, rows, main=0),
        report_page.GAP,
        report_page.grid(by_size(evaluation, played, baselines)),
        report_page.GAP,
        report_page.paragraph("How many episodes have which result. Orange lines are means."),
        report_page.grid(distributions(evaluation, played.measures), "13.5rem"),
    )
