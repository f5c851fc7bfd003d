"""Results by the size of the task: by distance, by how much the shortest path winds, by both; and histograms.

Legend: L episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from paceline.evaluation import charts, report_page
from paceline.evaluation.evaluate import confidence_interval
from paceline.sims.navigation.evaluation.measures import binned
from paceline.sims.navigation.evaluation.policy_episodes import PlayedEpisodes
from paceline.sims.navigation.evaluation.task_evaluation import Bins, ShownMeasures, TaskEvaluation

IMPERFECT = 0.95
"""The histogram of SPL shows episodes with less. Discrete steps alone cost a few hundredths."""
RATIOS = Bins(
    "path_ratio",
    "shortest path / straight line",
    "By how much the way winds",
    edges=(1.0, 1.1, 1.25, 1.5, 2.0, 3.0, math.inf),
    unit="",
)


Measures = Mapping[str, np.ndarray]
"""[L] each."""


def by_size(evaluation: TaskEvaluation, played: PlayedEpisodes, baselines: Mapping[str, Measures]) -> list[str]:
    """Figures of the main measures by the size of the task, as far as the task has sizes.

    `baselines` have played the same episodes. The best of them is shown too.
    """
    measures, figures = dict(played.measures), []
    *_, last = evaluation.main
    best = max(baselines, key=lambda name: baselines[name][last].mean())
    marks = (f"{evaluation.labels[last]} of the {best}", baselines[best][last])
    ratios = path_ratios(played)
    if evaluation.bins is not None:
        figures.append(bars(evaluation, evaluation.bins, measures, marks))
    if ratios is not None:
        measures[RATIOS.measure] = ratios
        figures.append(bars(evaluation, RATIOS, measures, marks))
    if evaluation.bins is not None and ratios is not None:
        figures.append(_both(evaluation, evaluation.bins, measures))
    if "spl" in measures:
        figures.append(_imperfect(measures["spl"]))
    return figures


def path_ratios(played: PlayedEpisodes) -> np.ndarray | None:
    """[L]: the length of the shortest path over the straight line between its ends; None if a task has no such path."""
    marked = [played.marks_of(number).path for number in range(len(played.routes))]
    paths = [path for path in marked if path is not None]
    if len(paths) < len(marked):
        return None
    lengths = np.array([np.linalg.norm(np.diff(path, axis=0), axis=1).sum() for path in paths])
    straight = np.array([np.linalg.norm(path[-1] - path[0]) for path in paths])
    return np.maximum(lengths / np.maximum(straight, 1e-6), 1.0)


def bars(
    evaluation: ShownMeasures,
    bins: Bins,
    measures: Measures,
    marks: tuple[str, np.ndarray],
) -> str:
    """The main measures with intervals, and `marks`: the name and the values [L] of another measure."""
    parts = binned(bins, measures)
    labels = [f"{_range(bins, low, high)}\n{within.sum()} ep." for low, high, within in parts]
    shown = {}
    for name in evaluation.main:
        groups = [measures[name][within] for *_, within in parts]
        means = np.array([group.mean() for group in groups])
        intervals = [confidence_interval(group) or [group.mean()] * 2 for group in groups]
        shown[evaluation.labels[name]] = (means, np.array(intervals))
    name, values = marks
    lines = (name, np.array([values[within].mean() for *_, within in parts]))
    uri = charts.grouped_bars(labels, shown, lines, x_label=bins.label)
    caption = "Means over the episodes of each group (ep.), with 95 % confidence intervals."
    return report_page.figure(uri, f"{' and '.join(shown)} by {bins.label}", heading=bins.heading, caption=caption)


def _both(evaluation: TaskEvaluation, bins: Bins, measures: Measures) -> str:
    *_, last = evaluation.main
    rows, columns = binned(RATIOS, measures), binned(bins, measures)
    counts = np.array([[(one & other).sum() for *_, other in columns] for *_, one in rows])
    sums = np.array([[measures[last][one & other].sum() for *_, other in columns] for *_, one in rows])
    uri = charts.heat_map(
        [_range(RATIOS, low, high) for low, high, _ in rows],
        [_range(bins, low, high) for low, high, _ in columns],
        np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0),
        counts,
        x_label=bins.label,
        y_label="path / straight line",
    )
    label = evaluation.labels[last]
    caption = f"Mean {label}, and the number of episodes. Groups without episodes are empty."
    return report_page.figure(uri, f"{label} by both", heading=f"{label} by both", caption=caption)


def _range(bins: Bins, low: float, high: float) -> str:
    return f"over {low:g}{bins.unit}" if high == math.inf else f"{low:g}–{high:g}{bins.unit}"


def _imperfect(spl: np.ndarray) -> str:
    below = spl[spl < IMPERFECT]
    heading = "SPL of the imperfect episodes"
    if not len(below):
        return f"<div>{report_page.heading(heading)}{report_page.paragraph('There are none.')}</div>"
    groups = {"reached, but not on the shortest path": below[below > 0], "failed": below[below <= 0]}
    uri = charts.histogram(groups, x_label=f"SPL, where it is below {IMPERFECT:g}")
    caption = f"{len(below)} of {len(spl)} episodes. The others reach {IMPERFECT:g} or more."
    return report_page.figure(uri, heading, heading=heading, caption=caption)


def distributions(evaluation: ShownMeasures, measures: Measures) -> list[str]:
    """A small histogram of every measure that has more than two values, and of the number of steps."""
    labels = {**evaluation.labels, "steps": "steps an episode"}
    figures = []
    for name, label in labels.items():
        if len(np.unique(measures[name])) > 2:
            uri = charts.distribution(measures[name])
            heading = f"{label[0].upper()}{label[1:]}"
            figures.append(report_page.figure(uri, f"Histogram of {label}", heading=heading))
    return figures
