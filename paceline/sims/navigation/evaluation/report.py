"""What navigation adds to a report: measures in unseen apartments, what limits the policy, maps, failures and views."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from paceline.envs.ids import EnvId
from paceline.evaluation import report_page
from paceline.evaluation.evaluators import EvaluationOptions
from paceline.evaluation.report_page import ReportPart, Tile, cell
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
from paceline.sims.navigation.evaluation.report_sizes import by_size, distributions
from paceline.sims.navigation.evaluation.report_views import views
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation

NUM_MAPS = 6


def report_part(evaluation: TaskEvaluation, folder: Path, episodes: int) -> ReportPart:
    """Play `episodes` episodes of the val split with the latest checkpoint and with baselines, and show them."""
    run = SavedRun.load(folder)
    config = split_config(env_config(run.config.env))
    played = play_policy(run, config, EvaluationOptions(episodes=episodes))
    summary = summarize(evaluation, played.measures)
    baselines = {
        label: baseline_measures(evaluation, name, config, played.bank, episodes, num_envs=NUM_STREAMS)
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
    return ReportPart([_tile(evaluation, name, summary) for name in evaluation.main], sections)


def _tile(evaluation: TaskEvaluation, name: str, summary: dict[str, Any]) -> Tile:
    measure = evaluation.measures[name]
    label = measure.label[0].upper() + measure.label[1:]
    return Tile(f"{label} on val", measure.show(summary[name]), _interval(evaluation, name, summary), is_main=True)


def _interval(evaluation: TaskEvaluation, name: str, summary: dict[str, Any]) -> str:
    low, high = (evaluation.measures[name].show(value) for value in summary[f"{name}_ci95"])
    return f"{low} to {high}"


def _novelty(run: SavedRun, played: PlayedEpisodes) -> str:
    trained = env_config(run.config.env, None)
    named = EnvId.parse(run.config.env).options.get("split", "train")
    own = trained.bank_file or trained.plans
    return "" if own or named == played.config.split else "which training has never seen, "


def _evaluation(
    evaluation: TaskEvaluation,
    run: SavedRun,
    played: PlayedEpisodes,
    summary: dict[str, Any],
    baselines: dict[str, dict[str, np.ndarray]],
) -> str:
    lead = (
        f"{summary['episodes']} episodes in {min(played.bank.num_scenes, summary['episodes'])} apartments of the "
        f"{played.config.split} split, {_novelty(run, played)}played by {run.checkpoint} with the most likely "
        f"actions. {evaluation.about_baselines} Intervals are 95 % confidence intervals."
    )
    results = {"this policy": summary, **{name: summarize(evaluation, each) for name, each in baselines.items()}}
    rows = [_row(evaluation, name, result) for name, result in results.items()]
    header = ("", *evaluation.labels.values())
    return report_page.section(
        "evaluation",
        "Navigation in unseen apartments",
        lead,
        report_page.table(header, rows, main=0),
        report_page.GAP,
        report_page.grid(by_size(evaluation, played, baselines)),
        report_page.GAP,
        report_page.paragraph("How many episodes have which result. Orange lines are means."),
        report_page.grid(distributions(evaluation, played.measures), "13.5rem"),
    )


def _row(evaluation: TaskEvaluation, name: str, result: dict[str, Any]) -> list[str]:
    cells = [cell(name)]
    for key, measure in evaluation.measures.items():
        if key not in evaluation.main:
            cells.append(cell(measure.show(result[key])))
            continue
        share = result[key] if key in evaluation.rates else None
        cells.append(cell(measure.show(result[key]), _interval(evaluation, key, result), share))
    return cells
