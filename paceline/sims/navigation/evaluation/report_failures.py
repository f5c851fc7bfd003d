"""The section of a report about failed episodes: how many are in each class, and maps of the worst of each."""

from __future__ import annotations

import numpy as np

from paceline.evaluation import report_page
from paceline.evaluation.report_page import cell
from paceline.sims.navigation.evaluation.failures import Failure, failure_of
from paceline.sims.navigation.evaluation.policy_episodes import PlayedEpisodes
from paceline.sims.navigation.evaluation.report_maps import legend, map_grid
from paceline.sims.navigation.evaluation.task_evaluation import TaskEvaluation
from paceline.wording import counted

NUM_EXAMPLES = 3
"""Most maps of each class."""


def failures(evaluation: TaskEvaluation, played: PlayedEpisodes) -> list[str]:
    """The section, or none for a task without `TaskEvaluation.found_distance`."""
    if evaluation.found_distance is None:
        return []
    found_distance = evaluation.found_distance(played.config)
    failed = np.flatnonzero(played.measures["success"] <= 0).tolist()
    title, total = "Why it failed", len(played.routes)
    if not failed:
        return [report_page.section("failures", title, f"None of {counted(total, 'episode')} failed.")]
    classes: dict[Failure, list[int]] = {kind: [] for kind in Failure}
    for number in failed:
        classes[failure_of(played.routes[number], found_distance)].append(number)
    found = {kind: numbers for kind, numbers in classes.items() if numbers}
    lead = (
        f"{len(failed)} of {counted(total, 'episode')} failed. Each belongs to one class. The maps show the episodes "
        "of each class that ended farthest from the goal."
    )
    header = ("class", "what happened", "episodes", "share of the failures", "mean distance to the goal at the end")
    table = report_page.table(header, [_row(played, kind, numbers, len(failed)) for kind, numbers in found.items()])
    maps = report_page.GAP.join(_examples(evaluation, played, kind, numbers) for kind, numbers in found.items())
    return [report_page.section("failures", title, lead, table, report_page.GAP, legend(played), maps)]


def _row(played: PlayedEpisodes, kind: Failure, numbers: list[int], total: int) -> list[str]:
    share, left = len(numbers) / total, played.measures["distance_to_goal"][numbers].mean()
    texts = (cell(kind.label), cell(kind.value), cell(str(len(numbers))))
    return [*texts, cell(f"{share:.0%}", share=share), cell(f"{left:.1f} m")]


def _examples(evaluation: TaskEvaluation, played: PlayedEpisodes, kind: Failure, numbers: list[int]) -> str:
    left = played.measures["distance_to_goal"]
    worst = sorted(numbers, key=lambda number: -float(left[number]))[:NUM_EXAMPLES]
    label = kind.label[0].upper() + kind.label[1:]
    return report_page.heading(label) + map_grid(evaluation, played, worst)
