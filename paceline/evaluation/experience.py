"""The section of a report about results over experience: one run or several, for example of several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.evaluation import charts, report_page
from paceline.evaluation.history import History
from paceline.evaluation.power_law import MIN_POINTS, START, FittedLaw, PowerLaw, RunCurves, fit_curves
from paceline.evaluation.report_words import capitalized

AHEAD = 10.0
"""The fit is drawn up to this multiple of the experience."""


def section(groups: Mapping[str, Sequence[History]], metric: str, label: str, name: str = "experience") -> str:
    """The section about a rate, between 0 and 1: a chart for each group of runs, with a fit. `name` is its id.

    Empty if no group has two reports over the same steps.
    """
    parts: list[str] = []
    for group, histories in groups.items():
        curves = RunCurves.of(histories, metric)
        if curves is not None:
            parts += [report_page.heading(group)] if len(groups) > 1 else []
            parts.append(report_page.grid(_figure(curves, label)))
    title = f"{capitalized(label)} over experience"
    return report_page.section(name, title, "", *parts) if parts else ""


def _figure(curves: RunCurves, label: str) -> list[str]:
    """The chart, and the fit in words."""
    fitted, count = fit_curves(curves), len(curves.results)
    fit = None if fitted is None else _fit_line(fitted.law, fitted.first, float(curves.steps[-1]))
    uri = charts.experience(curves.steps, curves.results, fit, y_label=label, limits=(0.0, 1.0))
    shown = "one run" if count == 1 else f"the mean and the range of {count} runs, up to the end of the shortest"
    caption = f"Means over the latest episodes of training: {shown}. The axis of steps is logarithmic."
    figure = report_page.figure(uri, f"{label} over experience", caption=caption)
    return [figure, report_page.paragraph(_about_fit(fitted, label, count))]


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
