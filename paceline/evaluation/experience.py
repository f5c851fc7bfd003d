"""The section of a report about results over experience: one run or several, for example of several seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.evaluation import charts, report_page
from paceline.evaluation.history import History
from paceline.evaluation.power_law import MIN_POINTS, START, FittedLaw, PowerLaw, RunCurves, fit_curves
from paceline.evaluation.report_page import cell

AHEAD = 10.0
"""The fit is drawn up to this multiple of the experience."""


@dataclass(frozen=True)
class RunResults:
    """One of the runs."""

    name: str
    seed: int
    history: History


def section(runs: Sequence[RunResults], metric: str, label: str, *, is_rate: bool, differences: str) -> str:
    """The section about `metric`, called `label`; empty for one run with one report.

    A rate is between 0 and 1. It is fitted by a power law. `differences` names the settings in which the runs differ.
    """
    title = f"{label[0].upper()}{label[1:]} over experience"
    curves = RunCurves.of([run.history for run in runs], metric)
    if curves is None:
        lead = "The runs have no two reports over the same steps."
        return report_page.section("experience", title, lead) if len(runs) > 1 else ""
    fitted = fit_curves(curves) if is_rate else None
    uri = charts.experience(
        curves.steps,
        curves.results,
        None if fitted is None else _fit_line(fitted.law, fitted.first, float(curves.steps[-1])),
        y_label=label,
        limits=(0.0, 1.0) if is_rate else None,
    )
    one = len(runs) == 1
    shown = "one run" if one else f"the mean and the range of {len(runs)} runs, up to the end of the shortest"
    caption = f"Means over the latest episodes of training: {shown}. The axis of steps is logarithmic."
    figure = report_page.figure(uri, f"{label} over experience", caption=caption)
    text = _about_fit(fitted, label, len(runs)) if is_rate else ""
    table = "" if one else _table(runs, metric, label) + report_page.GAP
    lead = "" if one else f"The runs differ in: {differences}." if differences else "The runs have the same settings."
    parts = (table, report_page.grid([figure, report_page.paragraph(text)] if text else [figure]))
    return report_page.section("experience", title, lead, *parts)


def _fit_line(law: PowerLaw, first: float, last: float) -> tuple[np.ndarray, np.ndarray]:
    steps = np.geomspace(first, AHEAD * last, 80)
    return steps, law.at(steps)


def _about_fit(fitted: FittedLaw | None, label: str, num_runs: int) -> str:
    if fitted is None:
        return f"There is no fit yet: it needs {MIN_POINTS} points after the mean has reached {START:g}."
    law = fitted.law
    if fitted.interval is None:
        interval = "an interval needs three runs"
    else:
        low, high = fitted.interval
        interval = f"95 % interval {low:.2f} to {high:.2f}, by bootstrap over {num_runs} runs"
    return (
        f"The dashed line is a power law of the error: 1 - {label} = a · steps^-b, with a = {law.scale:.3g} and "
        f"b = {law.exponent:.2f} ({interval}). Twice the experience multiplies the error by {2**-law.exponent:.2f}. "
        f"It was fitted by least squares between logarithms, to {fitted.num_points} points from "
        f"{charts.short(round(fitted.first))} steps on, where the mean first reaches {START:g}. Beyond the last point "
        "it is an extrapolation. It goes to 1, which real agents may never reach."
    )


def _table(runs: Sequence[RunResults], metric: str, label: str) -> str:
    rows = []
    for run in runs:
        last = run.history.last(metric)
        steps = charts.short(run.history.last("step") or 0.0)
        rows.append([cell(run.name), cell(str(run.seed)), cell(steps), cell("" if last is None else f"{last:.3g}")])
    return report_page.table(("run", "seed", "steps", f"{label} at the end"), rows)
