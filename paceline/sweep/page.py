"""The HTML page of a sweep: the objective over trials, what matters, and all trials."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paceline import __version__
from paceline.evaluation import charts, report_page
from paceline.evaluation.charts import (
    BLUE,
    GRAY,
    LIGHT_BLUE,
    ORANGE,
    SMALL,
    WIDE,
    as_svg,
    new_axes,
    number_axes,
    styled,
)
from paceline.evaluation.report_page import Tile, cell
from paceline.files import replace_text
from paceline.sweep.objective import Objective
from paceline.sweep.search import Search, TrialResult
from paceline.sweep.space import SearchRange, Space, value_in_words


def write_page(folder: Path, title: str, search: Search, space: Space, objective: Objective, best_command: str) -> Path:
    """Write sweep.html in `folder`; its path."""
    results, ranked = search.results(), search.ranked()
    counts = {name: sum(one.outcome == name for one in results) for name in ("complete", "pruned", "failed")}
    note = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    tiles = [Tile("Trials", str(len(results)), note)]
    sections = []
    if ranked:
        best = ranked[0].folder
        tiles.append(Tile(f"Best {objective.metric}", charts.short(ranked[0].value or 0.0), best, is_main=True))
        sections += [_history_section(results, ranked, objective), _settings_section(search, space, ranked, objective)]
        lead = report_page.paragraph(best_command)
        sections.append(report_page.section("best", "The best trial again", "This command repeats it.", lead))
    sections.append(_trials_section(results, space, objective, ranked))
    text = report_page.page(
        title=title,
        kind="hyper-parameter sweep",
        about=f"{'Lowest' if objective.minimize else 'Highest'} {objective.metric}: {_about(objective)}.",
        body=report_page.tiles(tiles) + "".join(sections),
        footer=f"Written on {time.strftime('%Y-%m-%d %H:%M')} by paceline {__version__}.",
    )
    path = folder / "sweep.html"
    replace_text(path, text)
    return path


def _about(objective: Objective) -> str:
    if objective.statistic == "last":
        return "the last report of a run"
    return f"the {objective.statistic} over the last {objective.window:.0%} of a run's steps"


def _history_section(results: Sequence[TrialResult], ranked: Sequence[TrialResult], objective: Objective) -> str:
    uri = history_chart(results, objective)
    caption = "Each dot is a trial, pruned ones are grey. The line is the best complete trial so far."
    return report_page.section("history", "History", "", report_page.figure(uri, "objective by trial", caption=caption))


def _settings_section(search: Search, space: Space, ranked: Sequence[TrialResult], objective: Objective) -> str:
    """Importances, and the objective over each setting."""
    parts = []
    importances = search.importances()
    if importances:
        heading = "Importance of the settings"
        caption = "Optuna's PED-ANOVA: how far a setting decides whether a trial is among the best. They sum to 1."
        parts.append(report_page.figure(importance_chart(importances), heading, heading=heading, caption=caption))
    figures = [
        report_page.figure(setting_chart(name, space, ranked), f"{objective.metric} over {name}", heading=name)
        for name in space
    ]
    lead = "" if importances else "Importances need four complete trials with different results, and two settings."
    return report_page.section("settings", "Settings", lead, *parts, report_page.grid(figures, "13.5rem"))


def _trials_section(
    results: Sequence[TrialResult], space: Space, objective: Objective, ranked: Sequence[TrialResult]
) -> str:
    ended = [result for result in results if result.outcome != "complete"]
    rows = []
    for result in [*ranked, *ended]:
        value = "-" if result.value is None else charts.short(result.value)
        settings = [cell(value_in_words(result.values.get(name))) for name in space]
        rows.append([cell(result.folder), cell(value), cell(result.outcome, result.error), *settings])
    table = report_page.table(("run", objective.metric, "outcome", *space), rows, 0 if ranked else None)
    return report_page.section(
        "trials", "Trials", "The best first. Each is a run folder in the folder of the sweep.", table
    )


@styled
def history_chart(results: Sequence[TrialResult], objective: Objective) -> str:
    axes = new_axes(WIDE)
    for outcome, color in (("pruned", GRAY), ("complete", BLUE)):
        known = [(one.number, one.value) for one in results if one.outcome == outcome and one.value is not None]
        if known:
            axes.plot(*zip(*known, strict=True), "o", color=color, markersize=3.5, label=outcome)
    complete = [(one.number, one.value) for one in results if one.outcome == "complete" and one.value is not None]
    numbers, values = (np.array(column, float) for column in zip(*complete, strict=True))
    best = np.minimum.accumulate(values) if objective.minimize else np.maximum.accumulate(values)
    axes.step(numbers, best, where="post", color=ORANGE, label="best so far")
    number_axes(axes, "trial")
    axes.set_ylabel(objective.metric)
    axes.figure.legend(loc="outside upper center", ncols=3, handlelength=1.2)
    return as_svg(axes)


@styled
def importance_chart(importances: Mapping[str, float]) -> str:
    axes = new_axes((WIDE[0], 0.7 + 0.32 * len(importances)))
    axes.barh(list(importances), list(importances.values()), 0.6, color=LIGHT_BLUE, edgecolor=BLUE)
    axes.invert_yaxis()
    number_axes(axes, "importance", only_x=True)
    axes.grid(False, axis="y")
    return as_svg(axes)


@styled
def setting_chart(name: str, space: Space, ranked: Sequence[TrialResult]) -> str:
    """The objective of complete trials over one setting."""
    axes = new_axes(SMALL)
    allowed = space[name]
    values = [one.value for one in ranked]
    if isinstance(allowed, SearchRange):
        axes.plot([one.values[name] for one in ranked], values, "o", color=BLUE, markersize=3.0)
        number_axes(axes, "")
        if allowed.log:
            axes.set_xscale("log")
    else:
        names = [value_in_words(value) for value in allowed.values]
        axes.plot(
            [names.index(value_in_words(one.values[name])) for one in ranked], values, "o", color=BLUE, markersize=3.0
        )
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
    return as_svg(axes)
