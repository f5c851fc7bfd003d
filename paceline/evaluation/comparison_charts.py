"""The charts of a report of several runs: one colour for each group, intervals as areas and bars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.evaluation.aggregate import Aggregate, Band
from paceline.evaluation.charts import COLORS, WIDE, as_svg, new_axes, number_axes, styled

LINES = ("-", "--", ":", "-.")
"""Groups with the same colour have another line."""
LEGEND_ROWS = 4


@dataclass(frozen=True)
class GroupCurve:
    """A group's curve over its own x [K]."""

    x: np.ndarray
    band: Band
    runs: np.ndarray
    """[R, K]: drawn thinly where there is no interval."""


@styled
def group_curves(curves: Mapping[str, GroupCurve], *, x_label: str, limits: tuple[float, float] | None) -> str:
    """One line per group, with its interval."""
    axes = new_axes()
    for number, (name, curve) in enumerate(curves.items()):
        color, line = _look(number)
        if curve.band.low is not None:
            axes.fill_between(curve.x, curve.band.low, curve.band.high, color=color, alpha=0.18, linewidth=0)
        elif len(curve.runs) > 1:
            axes.plot(curve.x, curve.runs.T, color=color, alpha=0.35, linewidth=0.8)
        axes.plot(curve.x, curve.band.middle, color=color, linestyle=line, label=name)
    if limits is not None:
        axes.set_ylim(*limits)
    number_axes(axes, x_label)
    axes.margins(x=0.01)
    _legend(axes, len(curves))
    return as_svg(axes)


@styled
def group_intervals(groups: Mapping[str, Aggregate], *, x_label: str) -> str:
    """One row per group: its interquartile mean as a dot, and the interval as a bar."""
    axes = new_axes((WIDE[0], 0.9 + 0.36 * len(groups)))
    for number, group in enumerate(groups.values()):
        color, _ = _look(number)
        if group.interval is not None:
            axes.barh(
                number, group.interval[1] - group.interval[0], 0.5, left=group.interval[0], color=color, alpha=0.3
            )
        axes.plot(group.iqm, number, "o", color=color, markersize=5.0)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set_ylim(len(groups) - 0.5, -0.5)
    number_axes(axes, x_label, only_x=True)
    axes.grid(False, axis="y")
    return as_svg(axes)


@styled
def profiles(thresholds: np.ndarray, groups: Mapping[str, Band], *, x_label: str) -> str:
    """The share of runs above each threshold."""
    axes = new_axes()
    for number, (name, band) in enumerate(groups.items()):
        color, line = _look(number)
        if band.low is not None:
            axes.fill_between(thresholds, band.low, band.high, color=color, alpha=0.18, linewidth=0, step="post")
        axes.step(thresholds, band.middle, where="post", color=color, linestyle=line, label=name)
    number_axes(axes, x_label)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("share of runs above")
    axes.margins(x=0.01)
    _legend(axes, len(groups))
    return as_svg(axes)


def _look(number: int) -> tuple[str, str]:
    return COLORS[number % len(COLORS)], LINES[number // len(COLORS) % len(LINES)]


def _legend(axes: Any, count: int) -> None:
    if count > 1:
        axes.figure.legend(loc="outside lower center", ncols=-(-count // LEGEND_ROWS), handlelength=1.4)
