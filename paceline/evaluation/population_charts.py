"""The charts of a population: one colour for each member in all of them. Each function returns one SVG image as a data
URI.

Legend: P players, K points of a curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.ticker import FuncFormatter, NullLocator
from matplotlib.transforms import ScaledTranslation

from paceline.evaluation.charts import COLORS, ORANGE, WIDE, as_svg, draw_line, new_axes, number_axes, short, styled
from paceline.evaluation.report_page import BLUE, GRID, INK, MUTED

Curve = tuple[np.ndarray, np.ndarray]
"""x and y [K]."""
MANY_LANES = 12
"""Lanes of more members are thinner."""
RATES = LinearSegmentedColormap.from_list("rates", [ORANGE, "#ffffff", BLUE]).with_extremes(bad=GRID)
DARK = 0.35
"""Rates that differ from one half by more are dark."""
POINTS_PER_INCH = 72
LOG_RATIO = 4.0
"""Positive values that differ by more than this factor are on a logarithmic axis."""


def member_colors(members: Sequence[str]) -> dict[str, str]:
    """The colour of each member."""
    if len(members) <= len(COLORS):
        return dict(zip(members, COLORS, strict=False))
    shades = matplotlib.colormaps["turbo"](np.linspace(0.05, 0.95, len(members)))
    return {member: to_hex(shade) for member, shade in zip(members, shades, strict=True)}


@styled
def member_curves(
    curves: Mapping[str, Curve], colors: Mapping[str, str], *, x_label: str, size: tuple[float, float] = WIDE
) -> str:
    """One line for each member. The colours are explained elsewhere."""
    axes = new_axes(size)
    for member, (x, y) in curves.items():
        known = np.isfinite(y)
        draw_line(axes, x[known], y[known], colors[member], member)
    number_axes(axes, x_label)
    axes.margins(x=0.01)
    return as_svg(axes)


@styled
def spread(x: np.ndarray, best: np.ndarray, mean: np.ndarray, deviation: np.ndarray, *, x_label: str) -> str:
    """The best and the mean of a population, and one standard deviation around the mean."""
    axes = new_axes()
    known = np.isfinite(best)
    x, best, mean, deviation = x[known], best[known], mean[known], deviation[known]
    axes.fill_between(x, mean - deviation, mean + deviation, color=BLUE, alpha=0.15, linewidth=0, label="spread")
    axes.plot(x, mean, color=BLUE, label="mean")
    axes.plot(x, best, color=INK, linewidth=1.2, label="best")
    number_axes(axes, x_label)
    axes.margins(x=0.01)
    axes.figure.legend(loc="outside upper center", ncols=3, handlelength=1.2)
    return as_svg(axes)


@styled
def steps_over_time(
    values: Mapping[str, Curve],
    taken: Sequence[tuple[float, float, str, str]],
    colors: Mapping[str, str],
    *,
    x_label: str,
    end: float,
) -> str:
    """A hyper-parameter of each member, constant between rounds, until `end`. `taken` are step, value, member and
    donor of take-overs."""
    axes = new_axes()
    # Members often have equal values: their lines run side by side, so all stay visible.
    gap = min(2.4, 14.0 / len(values)) / POINTS_PER_INCH
    beside = {
        member: axes.transData
        + ScaledTranslation(0, gap * ((len(values) - 1) / 2 - number), axes.figure.dpi_scale_trans)
        for number, member in enumerate(values)
    }
    for member, (x, y) in values.items():
        x, y = np.append(x, max(end, x[-1])), np.append(y, y[-1])
        axes.plot(x, y, color=colors[member], drawstyle="steps-post", linewidth=1.6)[0].set_transform(beside[member])
    for at, value, member, donor in taken:
        mark = {"color": colors[donor], "markersize": 5.0, "markeredgecolor": "white", "zorder": 3}
        axes.plot(at, value, "o", **mark)[0].set_transform(beside[member])
    known = np.concatenate([y for _, y in values.values()])
    number_axes(axes, x_label)
    if (known > 0).all() and known.max() > LOG_RATIO * known.min():
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.yaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.01, y=0.12)
    return as_svg(axes)


@dataclass(frozen=True)
class TakeOver:
    """A member goes on with the weights that a donor had."""

    member: str
    step: float
    donor: str
    donor_step: float


@styled
def lineage(
    ancestors: Mapping[str, Sequence[tuple[float, str]]],
    take_overs: Sequence[TakeOver],
    mutations: Sequence[tuple[str, float]],
    colors: Mapping[str, str],
    *,
    x_label: str,
    end: float,
) -> str:
    """A lane for each member, in the colour of the member in which its weights began; a line from the donor at each
    take-over, and a tick at each mutation (member, step)."""
    members = list(ancestors)
    axes = new_axes((WIDE[0] * 2, max(1.6, 0.42 * len(members) + 0.8)))
    lanes = {member: -number for number, member in enumerate(members)}
    thick = 7.0 if len(members) <= MANY_LANES else 4.0
    for member, descent in ancestors.items():
        starts = [step for step, _ in descent]
        for (start, ancestor), stop in zip(descent, [*starts[1:], max(end, starts[-1])], strict=True):
            axes.hlines(lanes[member], start, stop, color=colors[ancestor], linewidth=thick, alpha=0.85)
    for member, step in mutations:
        axes.plot(step, lanes[member], "|", color="white", markersize=thick, markeredgewidth=1.6, zorder=3)
    for event in take_overs:
        if event.donor in lanes and event.member in lanes:
            _connect(axes, event, lanes)
    axes.set_yticks(list(lanes.values()), members)
    axes.set_ylim(0.6 - len(members), 0.4)
    number_axes(axes, x_label, only_x=True)
    axes.grid(False, axis="y")
    axes.margins(x=0.01)
    return as_svg(axes)


def _connect(axes: Any, event: TakeOver, lanes: Mapping[str, int]) -> None:
    arrow = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.1, "shrinkA": 0, "shrinkB": 2, "mutation_scale": 8}
    ends = (event.step, lanes[event.member]), (event.donor_step, lanes[event.donor])
    axes.annotate("", *ends, arrowprops=arrow, zorder=4)
    axes.plot(*ends[1], "o", color=INK, markersize=3.0, zorder=4)


@styled
def win_rate_matrix(names: Sequence[str], rates: np.ndarray) -> str:
    """Win rates [P, P] of the row against the column; NaN where two have not met often enough."""
    size = 0.4 * len(names) + 1.1
    axes = new_axes((max(2.9, size + 0.5), max(2.4, size)))
    axes.figure.set_layout_engine("compressed")  # the layout for cells that are square
    image = axes.imshow(np.ma.masked_invalid(rates), cmap=RATES, vmin=0.0, vmax=1.0)
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    for row, column in np.argwhere(np.isfinite(rates)).tolist():
        rate = rates[row, column]
        color = "white" if abs(rate - 0.5) > DARK else INK
        axes.text(column, row, f"{100 * rate:.0f}", ha="center", va="center", fontsize=8.5, color=color)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02, ticks=[0.0, 0.5, 1.0])
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    bar.outline.set_visible(False)
    return as_svg(axes)


@dataclass(frozen=True)
class Ratings:
    """Elo ratings of one member over training, with their intervals. All [K]."""

    step: np.ndarray
    elo: np.ndarray
    low: np.ndarray
    high: np.ndarray


@styled
def ratings_over_time(
    rated: Mapping[str, Ratings],
    fixed: Mapping[str, tuple[float, float, float]],
    colors: Mapping[str, str],
    *,
    x_label: str,
) -> str:
    """A line with its 95 % interval for each member, and a dashed one for each fixed opponent (elo, low, high)."""
    axes = new_axes()
    for member, ratings in rated.items():
        axes.fill_between(ratings.step, ratings.low, ratings.high, color=colors[member], alpha=0.13, linewidth=0)
        few = {"marker": "o", "markersize": 3.5} if len(ratings.step) <= 24 else {}
        axes.plot(ratings.step, ratings.elo, color=colors[member], **few)
    for name, (elo, low, high) in fixed.items():
        axes.axhspan(low, high, color=MUTED, alpha=0.08, linewidth=0)
        axes.axhline(elo, color=MUTED, linewidth=1.2, linestyle="--")
        axes.annotate(name, (0.0, elo), (2, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
                      fontsize=8.5, color=MUTED)  # fmt: skip
    number_axes(axes, x_label)
    axes.margins(x=0.02)
    return as_svg(axes)
