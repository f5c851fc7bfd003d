"""A report of several runs: groups of seeds with intervals, learning curves, performance profiles, and every run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paceline.errors import UsageError, closest
from paceline.evaluation import charts, comparison_charts, experience, report_page
from paceline.evaluation.aggregate import (
    MIN_RUNS,
    Aggregate,
    aggregate_curves,
    performance_profile,
    scaled_to_unit,
)
from paceline.evaluation.compared_runs import runs_section
from paceline.evaluation.comparison_charts import GroupCurve
from paceline.evaluation.evaluators import evaluator_of
from paceline.evaluation.power_law import RunCurves
from paceline.evaluation.report_page import Tile, cell
from paceline.evaluation.report_words import capitalized, label_of
from paceline.evaluation.run_groups import ComparedRun, RunGroup, grouped

log = logging.getLogger(__name__)

NUM_THRESHOLDS = 201
METHOD = (
    "IQM is the interquartile mean over runs: the lowest and the highest quarter are left out. Intervals are 95 % "
    f"intervals by the stratified percentile bootstrap over runs. They need {MIN_RUNS} runs of each task."
)


@dataclass(frozen=True)
class TaskMetric:
    """By what the runs of one task are compared."""

    task: str
    metric: str
    """Its name in metrics.jsonl."""
    label: str
    is_rate: bool
    """Whether it is between 0 and 1."""


def comparison(folders: Sequence[Path], metric: str | None) -> str:
    """Tiles and sections about several runs. `metric` is what they are compared by; None chooses one."""
    runs = [ComparedRun.load(folder) for folder in folders]
    if len({run.folder.resolve() for run in runs}) < len(runs):
        raise UsageError("a run is given more than once; allowed: each run once")
    tasks = [_metric_of(task, runs, metric) for task in dict.fromkeys(run.task for run in runs)]
    _require_metric(runs, metric)
    groups = grouped(runs)
    _log_what_is_done(runs, tasks)
    sections = [_across_tasks(groups, tasks)] if len(tasks) > 1 else []
    for number, task in enumerate(tasks):
        own = [group for group in groups if group.of_task(task.task)]
        sections += [_task(own, task, number, several=len(tasks) > 1), _experience(own, task, number)]
    sections += [_differences(groups), runs_section(groups, {task.task: (task.metric, task.label) for task in tasks})]
    tiles = [Tile("Runs", str(len(runs))), Tile("Configurations", str(len(groups)))]
    tiles += [Tile("Tasks", str(len(tasks)))] if len(tasks) > 1 else _best(groups, tasks[0])
    return report_page.tiles(tiles) + "".join(sections)


def _metric_of(task: str, runs: Sequence[ComparedRun], metric: str | None) -> TaskMetric:
    """The last rate of the task's evaluator that all its runs have, otherwise the return."""
    evaluator = evaluator_of(task)
    own = [run for run in runs if run.task == task and run.history is not None]
    if metric is None:
        rates = [name for name in evaluator.rates if own and all(run.has(f"episode_{name}") for run in own)]
        metric = f"episode_{rates[-1] if rates else 'return'}"
    name = metric.removeprefix("episode_")
    return TaskMetric(task, metric, label_of(name, evaluator.labels), name in evaluator.rates)


def _require_metric(runs: Sequence[ComparedRun], metric: str | None) -> None:
    known = sorted({name for run in runs if run.history is not None for name in run.history.columns})
    if metric is not None and known and metric not in known:
        raise UsageError(f"no run has the metric {metric!r}{closest(metric, known)}; allowed: {', '.join(known)}")


def _log_what_is_done(runs: Sequence[ComparedRun], tasks: Sequence[TaskMetric]) -> None:
    if len(tasks) > 1:
        log.info(
            "runs of %d tasks: each task has its own section; across tasks, results are scaled to 0 to 1 in each task",
            len(tasks),
        )
    metrics = {task.task: task.metric for task in tasks}
    for run in runs:
        if run.history is None:
            log.warning("%s has not reported anything yet: it is listed, and counts nowhere", run.folder)
        elif not run.has(metrics[run.task]):
            log.warning("%s has no %s: it is listed, and counts nowhere", run.folder, metrics[run.task])


def _best(groups: Sequence[RunGroup], task: TaskMetric) -> list[Tile]:
    means = {group.name: Aggregate.of([results]).iqm for group, results in _with_results(groups, task)}
    if not means:
        return []
    best = max(means, key=lambda name: means[name])
    return [Tile(f"Highest {task.label}", charts.short(means[best]), best, is_main=True)]


def _with_results(groups: Sequence[RunGroup], task: TaskMetric) -> list[tuple[RunGroup, np.ndarray]]:
    found = [(group, group.results(task.task, task.metric)) for group in groups]
    return [(group, results) for group, results in found if len(results)]


def _task(groups: Sequence[RunGroup], task: TaskMetric, number: int, *, several: bool) -> str:
    """Table, curves, intervals and profiles of one task."""
    title = f"{task.task}: {task.label}" if several else capitalized(task.label)
    found = _with_results(groups, task)
    if not found:
        return report_page.section(f"task-{number}", title, f"No run has reported {task.metric}.")
    strata = {group.name: [results] for group, results in found}
    lead = f"The result of a run is its {task.label} in training, as a mean over the last tenth of its steps. {METHOD}"
    figures = [*_curves([group for group, _ in found], task), *_figures(strata, task.label)]
    return report_page.section(
        f"task-{number}", title, lead, _table(strata), report_page.GAP, report_page.grid(figures)
    )


def _across_tasks(groups: Sequence[RunGroup], tasks: Sequence[TaskMetric]) -> str:
    """Aggregates over all tasks, of the groups that have results in each. Rates are compared as they are."""
    scales = {}
    for task in tasks:
        all_results = np.concatenate([group.results(task.task, task.metric) for group in groups])
        if not task.is_rate and len(all_results):
            scales[task.task] = (float(all_results.min()), float(all_results.max()))
    strata = {}
    for group in groups:
        results = [(task.task, group.results(task.task, task.metric)) for task in tasks]
        if all(len(values) for _, values in results):
            strata[group.name] = [
                scaled_to_unit(values, *scales[name]) if name in scales else values for name, values in results
            ]
    if not strata:
        return report_page.section("tasks", "All tasks", "No configuration has results in every task.")
    lead = "Only configurations with results in every task. " + (
        "Results other than rates are scaled: in each task 0 is the lowest result of a run on this page, and 1 the "
        "highest, so these numbers mean nothing outside of this page. "
        if scales
        else ""
    )
    figures = report_page.grid(_figures(strata, "result"))
    return report_page.section("tasks", "All tasks", lead + METHOD, _table(strata), report_page.GAP, figures)


def _table(strata: Mapping[str, Sequence[np.ndarray]]) -> str:
    aggregates = {name: Aggregate.of(results) for name, results in strata.items()}
    best = max(range(len(aggregates)), key=lambda index: list(aggregates.values())[index].iqm)
    rows = []
    for name, found in aggregates.items():
        values = np.concatenate(strata[name])
        interval = "-" if found.interval is None else f"{_shown(found.interval[0])} to {_shown(found.interval[1])}"
        numbers = (values.mean(), np.median(values), values.min(), values.max())
        rows.append(
            [cell(text) for text in (name, str(len(values)), _shown(found.iqm), interval, *map(_shown, numbers))]
        )
    header = ("configuration", "runs", "IQM", "95 % interval", "mean", "median", "lowest", "highest")
    return report_page.table(header, rows, best if len(rows) > 1 else None)


def _shown(value: float) -> str:
    return charts.short(float(value))


def _curves(groups: Sequence[RunGroup], task: TaskMetric) -> list[str]:
    """Learning curves, over the steps that all runs of a group have."""
    curves = {}
    for group in groups:
        histories = [run.history for run in group.of_task(task.task) if run.history and run.has(task.metric)]
        found = RunCurves.of(histories, task.metric, is_linear=True)
        if found is not None:
            curves[group.name] = GroupCurve(found.steps, aggregate_curves(found.results), found.results)
    if not curves:
        return [report_page.paragraph("The runs have no two reports over the same steps.")]
    limits = (0.0, 1.0) if task.is_rate else None
    uri = comparison_charts.group_curves(curves, x_label="agent steps", limits=limits)
    caption = f"Interquartile mean over seeds, and its interval at each step. Fewer than {MIN_RUNS} runs: thin lines."
    heading = f"{capitalized(task.label)} over steps"
    return [report_page.figure(uri, heading, heading=heading, caption=caption)]


def _figures(strata: Mapping[str, Sequence[np.ndarray]], label: str) -> list[str]:
    """Intervals, and performance profiles."""
    aggregates = {name: Aggregate.of(results) for name, results in strata.items()}
    uri = comparison_charts.group_intervals(aggregates, x_label=label)
    heading = "Interquartile mean and its interval"
    figures = [report_page.figure(uri, f"{heading}, by configuration", heading=heading)]
    values = np.concatenate([part for parts in strata.values() for part in parts])
    if np.ptp(values) == 0:  # a profile over one point shows nothing
        return figures
    margin = 0.02 * float(np.ptp(values))
    thresholds = np.linspace(values.min() - margin, values.max() + margin, NUM_THRESHOLDS)
    bands = {name: performance_profile(results, thresholds) for name, results in strata.items()}
    uri = comparison_charts.profiles(thresholds, bands, x_label=label)
    caption = "The share of runs with a result above the number on the axis. A higher curve is better."
    return [*figures, report_page.figure(uri, "Performance profiles", heading="Performance profiles", caption=caption)]


def _experience(groups: Sequence[RunGroup], task: TaskMetric, number: int) -> str:
    """Rates over experience on a logarithmic axis, with a power law of each group."""
    if not task.is_rate:
        return ""
    histories = {
        group.name: [run.history for run in group.of_task(task.task) if run.history and run.has(task.metric)]
        for group in groups
    }
    known = {name: found for name, found in histories.items() if found}
    return experience.section(known, task.metric, task.label, "experience" if number == 0 else f"experience-{number}")


def _differences(groups: Sequence[RunGroup]) -> str:
    """The options that differ, with a column for each group."""
    if len(groups) == 1:
        lead = "All runs have the same settings, apart from their seed, their task, and how often they report and save."
        return report_page.section("differences", "What differs", lead)
    rows = [[cell(name), *(cell(group.settings[name]) for group in groups)] for name in groups[0].settings]
    table = report_page.table(("option", *(group.name for group in groups)), rows)
    return report_page.section(
        "differences", "What differs", "Runs that differ only in their seed are one group.", table
    )
