"""What rearrangement adds to a report: measures in unseen houses, maps, failures, and what the robot saw."""

from __future__ import annotations

from typing import Any

import numpy as np

from paceline.evaluation import report_page
from paceline.evaluation.report_page import ReportPart
from paceline.evaluation.saved import SavedRun
from paceline.sims.navigation.evaluation.measures import summarize
from paceline.sims.navigation.evaluation.report_measures import row, tile
from paceline.sims.navigation.evaluation.report_sizes import bars, distributions
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.evaluation.baselines import BASELINES
from paceline.sims.rearrangement.evaluation.played import PlayedRobots, played_by_baseline, played_by_policy
from paceline.sims.rearrangement.evaluation.report_robots import failures, trajectories
from paceline.sims.rearrangement.evaluation.report_sights import sights
from paceline.sims.rearrangement.rendering.painter import HousePainter
from paceline.wording import counted

NUM_BASELINE_EPISODES = 40
"""Most episodes that baselines play. They take longer than a policy."""
NUM_MAPS = 3
"""Most maps of successful episodes, and of failed ones."""


def policy_part(run: SavedRun, task: str, config: RearrangementConfig, episodes: int | None) -> ReportPart:
    """Play `episodes` episodes, or the usual number, with the latest checkpoint, and some with baselines, and show
    them."""
    played = played_by_policy(run, task, config, episodes)
    return robot_part(played, "this policy", f"{run.checkpoint} with the most likely actions")


def baseline_part(name: str, task: str, config: RearrangementConfig, episodes: int | None) -> ReportPart:
    """The same for a baseline."""
    return robot_part(played_by_baseline(name, task, config, episodes), name, f"the agent {name}")


def robot_part(played: PlayedRobots, name: str, player: str) -> ReportPart:
    """The report of episodes that `player` has played, whose row of the table is `name`."""
    evaluation, summary = played.evaluation, summarize(played.evaluation, played.measures)
    shown, painter = chosen_episodes(played, NUM_MAPS), HousePainter(played.bank)
    sections = [
        _evaluation(played, name, player, summary),
        trajectories(played, painter, shown),
        failures(played, painter),
        sights(played, painter, shown),
    ]
    return ReportPart([tile(evaluation, "success", summary, f"on {played.config.split}")], sections)


def chosen_episodes(played: PlayedRobots, count: int) -> list[int]:
    """Up to `count` successful and `count` failed episodes, of short, middle and long ones."""
    success, steps = played.measures["success"] > 0, played.measures["steps"]
    shown = []
    for group in (np.flatnonzero(success), np.flatnonzero(~success)):
        order = group[np.argsort(steps[group], kind="stable")]
        if len(order):
            ranks = ((np.arange(count) + 0.5) / count * len(order)).astype(int)
            shown += list(dict.fromkeys(order[ranks].tolist()))
    return shown


def _evaluation(played: PlayedRobots, name: str, player: str, summary: dict[str, Any]) -> str:
    evaluation, count = played.evaluation, summary["episodes"]
    several = min(count, NUM_BASELINE_EPISODES)
    baselines = {
        agent: played_by_baseline(agent, played.task, played.config, several, played.bank)
        for agent, baseline in BASELINES.items()
        if played.task in baseline.tasks and agent != name
    }
    results = {name: summary} | {agent: summarize(evaluation, other.measures) for agent, other in baselines.items()}
    houses = counted(min(played.bank.num_scenes, count), "house")
    about_oracle = "The oracle knows everything about the house. " if "oracle" in results else ""
    lead = (
        f"{counted(count, 'episode')} of {played.task} in {houses} of the {played.config.split} split, played by "
        f"{player}. Baselines play the first {several}. {about_oracle}Intervals are 95 % confidence intervals."
    )
    table = report_page.table(
        ("", *evaluation.labels.values()), [row(evaluation, agent, result) for agent, result in results.items()], main=0
    )
    mean = np.full(count, summary["success"])
    by_distance = bars(evaluation, evaluation.bins, played.measures, ("success of all episodes", mean))
    return report_page.section(
        "evaluation",
        f"Rearrangement in houses of {played.config.split}",
        lead,
        table,
        report_page.GAP,
        report_page.grid([by_distance]),
        report_page.GAP,
        report_page.paragraph("How many episodes have which result. Orange lines are means."),
        report_page.grid(distributions(evaluation, played.measures), "13.5rem"),
    )
