"""The section of a report about failed episodes: how many are in each class, and maps of the worst of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

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
    classes: dict[Failure, list[int]] = {kind: [] for kind in Failure}
    for number in failed:
        route = played.routes[number]._replace(distances=evaluation.ways_left(played, number))
        classes[failure_of(route, found_distance)].append(number)
    left = played.measures["distance_to_goal"]
    worst = {kind: sorted(numbers, key=lambda number: -float(left[number])) for kind, numbers in classes.items()}
    column = FailureColumn("mean distance to the goal at the end", lambda numbers: f"{left[numbers].mean():.1f} m")
    about = "The maps show the episodes of each class that ended farthest from the goal."
    section = failure_section(
        worst, len(played.routes), column, about, legend(played), lambda shown: map_grid(evaluation, played, shown)
    )
    return [section]


class FailureClass(Protocol):
    """A member of an enumeration of failures."""

    @property
    def label(self) -> str: ...
    @property
    def value(self) -> str:
        """What happened, in a sentence."""
        ...


class FailureColumn(NamedTuple):
    """The last column of the table."""

    header: str
    text: Callable[[list[int]], str]
    """Of the episodes of a class."""


def failure_section(
    classes: Mapping[Any, list[int]],
    total: int,
    column: FailureColumn,
    about: str,
    key: str,
    maps: Callable[[list[int]], str],
) -> str:
    """The section about failed episodes by their `FailureClass`, of `total` episodes: a table, and maps of the first of
    each class."""
    title = "Why it failed"
    found = {kind: numbers for kind, numbers in classes.items() if numbers}
    failed = sum(map(len, found.values()))
    if not failed:
        return report_page.section("failures", title, f"None of {counted(total, 'episode')} failed.")
    lead = f"{failed} of {counted(total, 'episode')} failed. Each belongs to one class. {about}"
    header = ("class", "what happened", "episodes", "share of the failures", column.header)
    table = report_page.table(header, [_row(kind, numbers, failed, column) for kind, numbers in found.items()])
    examples = report_page.GAP.join(
        report_page.heading(kind.label[0].upper() + kind.label[1:]) + maps(numbers[:NUM_EXAMPLES])
        for kind, numbers in found.items()
    )
    return report_page.section("failures", title, lead, table, report_page.GAP, key, examples)


def _row(kind: FailureClass, numbers: list[int], total: int, column: FailureColumn) -> list[str]:
    share = len(numbers) / total
    texts = (cell(kind.label), cell(kind.value), cell(str(len(numbers))))
    return [*texts, cell(f"{share:.0%}", share=share), cell(column.text(numbers))]
