"""The section of a report of several runs that lists each: result, evaluation, command and commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.envs.registry import with_absolute_paths
from paceline.evaluation import charts, report_page
from paceline.evaluation.report_page import cell
from paceline.evaluation.report_words import duration
from paceline.evaluation.run_groups import ComparedRun, RunGroup
from paceline.run_records import evaluations_of, starts_of

UNKNOWN = "not recorded"
MAIN_MEASURES = 3
"""So many measures of an evaluation are shown."""


def runs_section(groups: Sequence[RunGroup], metrics: Mapping[str, tuple[str, str]]) -> str:
    """All runs. `metrics` has the metric of each task, and its label."""
    labels = dict.fromkeys(label for _, label in metrics.values())
    several = len(metrics) > 1
    header = ["run", "configuration", *(["task"] if several else []), "seed", "steps", "time"]
    header += [" or ".join(labels), "evaluation"]
    pairs = [(group, run) for group in groups for run in group.runs]
    rows = []
    for group, run in pairs:
        task = [cell(run.task)] if several else []
        rows.append([cell(run.name), cell(group.name), *task, *_numbers(run, metrics[run.task][0]), _evaluation(run)])
    lead = "Of each run the latest `paceline eval RUN` is shown; one on `train` only if there is no other."
    table = report_page.table(header, rows)
    return report_page.section("runs", "Runs", lead, table, report_page.GAP, _commands([run for _, run in pairs]))


def _numbers(run: ComparedRun, metric: str) -> list[str]:
    steps, seconds, result = run.last("step"), run.last("seconds"), run.result(metric)
    return [
        cell(str(run.config.seed)),
        cell("no reports" if steps is None else charts.short(steps)),
        cell("-" if seconds is None else duration(seconds)),
        cell("-" if result is None else charts.short(result)),
    ]


def _evaluation(run: ComparedRun) -> str:
    """The latest evaluation of the policy of a run in its own environment. Past selves do not count."""
    own = with_absolute_paths(run.config.env)
    results = [
        result
        for result in evaluations_of(run.folder)
        if with_absolute_paths(result.get("env", own)) == own and "@" not in str(result.get("policy", ""))
    ]
    if not results:
        return cell("-", "none yet")
    # An evaluation on the split of training is shown only if there is no other.
    latest = ([one for one in results if one.get("split") != "train"] or results)[-1]
    shown = [f"{name} {_interval(value, bounds)}" for name, value, bounds in measures_of(latest)[:MAIN_MEASURES]]
    actions = "sampled" if latest.get("sampled") else "deterministic"
    facts = [f"{latest.get('episodes', '?')} episodes", latest.get("split"), latest.get("checkpoint", "?"), actions]
    facts += [f"policy {latest['policy']}"] if latest.get("policies", 1) > 1 else []
    note = ", ".join(fact for fact in facts if fact)
    return cell("; ".join(shown) or "-", note)


def measures_of(result: Mapping[str, Any]) -> list[tuple[str, float, Any]]:
    """The measures of an evaluation with an interval: name, mean and interval, or None."""
    found = []
    for name, bounds in result.items():
        if name.endswith("_ci95"):
            measure, value = name.removesuffix("_ci95"), result.get(name.removesuffix("_ci95"))
        elif name == "ci95_return":
            measure, value = "return", result.get("mean_return")
        else:
            continue
        if isinstance(value, int | float):
            found.append((measure, float(value), bounds))
    return found


def _interval(value: float, bounds: Any) -> str:
    known = isinstance(bounds, list) and len(bounds) == 2 and all(isinstance(bound, int | float) for bound in bounds)
    return (
        f"{charts.short(value)} ({charts.short(bounds[0])} to {charts.short(bounds[1])})"
        if known
        else charts.short(value)
    )


def _commands(runs: Sequence[ComparedRun]) -> str:
    """How each run was started. A resumed run has several starts."""
    rows = []
    for run in runs:
        for start in starts_of(run.folder) or [{}]:
            texts = [str(start.get(name) or UNKNOWN) for name in ("date", "commit", "paceline", "command")]
            rows.append([cell(run.name), *map(cell, texts)])
    return report_page.table(("run", "started", "commit", "Paceline", "command"), rows)
