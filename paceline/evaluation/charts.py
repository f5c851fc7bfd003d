"""The charts of a report, drawn by matplotlib. Each function returns one SVG image as a data URI.

Figures are made without pyplot, so no global state changes and no display is needed.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from paceline.evaluation.report_page import BLUE, FONTS, INK

LIGHT_BLUE, ORANGE, GREEN, RED, GRAY = "#bfdbfe", "#ea580c", "#16a34a", "#dc2626", "#94a3b8"
COLORS = (BLUE, ORANGE, GREEN, "#9333ea", "#0891b2", GRAY)
MANY_POINTS = 120
"""A curve with more points is drawn faintly, with its running mean on top."""
SMOOTHED_SHARE = 0.03
BLUES = LinearSegmentedColormap.from_list("blues", ["#eff6ff", BLUE])
DARK_MEAN = 0.6
"""Cells of a heat map above it are dark, with white text."""

WIDE, SMALL = (5.6, 2.9), (2.75, 1.75)
"""Sizes in inches; the page scales them."""


styled = matplotlib.rc_context(fname=Path(__file__).with_name("report.mplstyle"))
"""Decorator of functions that draw."""


def new_axes(size: tuple[float, float] = WIDE) -> Any:
    return Figure(figsize=size, layout="constrained").add_subplot()


def as_svg(axes: Any) -> str:
    file = io.StringIO()
    axes.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return data_uri("image/svg+xml", file.getvalue().replace("'DejaVu Sans'", FONTS).encode())


def data_uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


@styled
def curves(
    x: np.ndarray,
    series: Mapping[str, np.ndarray],
    *,
    x_label: str,
    size: tuple[float, float] = WIDE,
    limits: tuple[float, float] | None = None,
) -> str:
    """Lines over a common x, with a legend if there are several."""
    axes = new_axes(size)
    for (label, values), color in zip(series.items(), COLORS, strict=False):
        known = np.isfinite(values)
        draw_line(axes, x[known], values[known], color, label)
    if limits is not None:
        axes.set_ylim(*limits)
    number_axes(axes, x_label)
    axes.margins(x=0.01)
    if len(series) > 1:
        axes.legend(loc="best", ncols=len(series), handlelength=1.2, columnspacing=1.2)
    return as_svg(axes)


def draw_line(axes: Any, x: np.ndarray, values: np.ndarray, color: str, label: str) -> None:
    if len(x) <= MANY_POINTS or np.ptp(values) == 0:  # the mean of a constant would show rounding errors
        few = {"marker": "o", "markersize": 3.0} if len(x) <= 3 else {}
        axes.plot(x, values, color=color, label=label, **few)
        return
    axes.plot(x, values, color=color, alpha=0.28, linewidth=0.9)
    axes.plot(x, running_mean(values, max(3, round(SMOOTHED_SHARE * len(x)))), color=color, label=label)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean of about `width` neighbouring values, of fewer at the ends."""
    half = width // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    start = np.maximum(np.arange(len(values)) - half, 0)
    end = np.minimum(np.arange(len(values)) + half + 1, len(values))
    return (sums[end] - sums[start]) / (end - start)


@styled
def shares(x: np.ndarray, parts: Mapping[str, np.ndarray], *, x_label: str) -> str:
    """Shares of a whole, stacked; `parts` add up to 1."""
    axes = new_axes()
    stack = np.nan_to_num(np.stack(list(parts.values())))
    if len(x) > MANY_POINTS:
        width = max(3, round(SMOOTHED_SHARE * len(x)))
        stack = np.stack([running_mean(row, width) for row in stack])
    if len(x) == 1:  # an area needs two ends
        x, stack = np.array([0.0, x[0]]), np.repeat(stack, 2, 1)
    axes.stackplot(x, stack, labels=list(parts), colors=COLORS, alpha=0.85, linewidth=0)
    axes.set_ylim(0.0, 1.0)
    number_axes(axes, x_label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.margins(x=0.0)
    axes.grid(False)
    axes.figure.legend(loc="outside lower center", ncols=min(len(parts), 6), handlelength=0.9, columnspacing=1.1)
    return as_svg(axes)


@styled
def grouped_bars(
    labels: Sequence[str],
    bars: Mapping[str, tuple[np.ndarray, np.ndarray]],
    marks: tuple[str, np.ndarray],
    *,
    x_label: str,
) -> str:
    """Up to two bars in [0, 1] per label: means [labels] and their intervals [labels, 2]. `marks` are lines across."""
    axes = new_axes()
    at = np.arange(len(labels))
    width = 0.76 / len(bars)
    colors = (LIGHT_BLUE, BLUE)[-len(bars) :]
    for index, ((name, (means, intervals)), color) in enumerate(zip(bars.items(), colors, strict=True)):
        place = at + (index - (len(bars) - 1) / 2) * width
        spread = np.abs(intervals.T - means)
        axes.bar(place, means, width * 0.92, color=color, label=name)
        axes.errorbar(place, means, spread, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2, alpha=0.7)
    name, values = marks
    axes.hlines(values, at - 0.4, at + 0.4, color=ORANGE, linewidth=2.0, label=name)
    axes.set_xticks(at, labels)
    axes.set_ylim(0.0, 1.05)
    axes.grid(False, axis="x")
    axes.set_xlabel(x_label)
    axes.figure.legend(loc="outside upper center", ncols=3, handlelength=1.2)
    return as_svg(axes)


@styled
def histogram(groups: Mapping[str, np.ndarray], *, x_label: str) -> str:
    """Episodes by a number from 0 to 1, in bins of 0.05. The first group is blue, the second red."""
    axes = new_axes()
    edges = np.linspace(0.0, 1.0, 21).tolist()
    for (name, values), color in zip(groups.items(), (BLUE, RED), strict=True):
        if len(values):
            axes.hist(values, edges, color=color, label=name, rwidth=0.88)
    axes.set_xlabel(x_label)
    axes.set_ylabel("episodes")
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.grid(False, axis="x")
    axes.set_xlim(-0.01, 1.01)
    axes.figure.legend(loc="outside upper center", ncols=2, handlelength=1.2)
    return as_svg(axes)


@styled
def distribution(values: np.ndarray) -> str:
    """A small histogram of any numbers, with a line at their mean."""
    axes = new_axes(SMALL)
    axes.hist(values, np.histogram_bin_edges(values, 16), color=BLUE, alpha=0.8, rwidth=0.9)
    axes.axvline(values.mean(), color=ORANGE, linewidth=1.6)
    number_axes(axes, "")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.grid(False, axis="x")
    return as_svg(axes)


@styled
def heat_map(
    rows: Sequence[str], columns: Sequence[str], means: np.ndarray, counts: np.ndarray, *, x_label: str, y_label: str
) -> str:
    """Means in [0, 1] by two properties, [rows, columns]; NaN where the count is 0. The first row is at the bottom."""
    axes = new_axes()
    axes.imshow(means, cmap=BLUES, vmin=0.0, vmax=1.0, origin="lower", aspect="auto")
    for (row, column), count in np.ndenumerate(counts):
        if count:
            mean = means[row, column]
            ink = "white" if mean > DARK_MEAN else INK
            axes.text(column, row, f"{mean:.2f}\n{count} ep.", ha="center", va="center", color=ink, fontsize=8.5)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    return as_svg(axes)


@styled
def stacked_bars(labels: Sequence[str], parts: Mapping[str, np.ndarray], *, x_label: str) -> str:
    """One horizontal bar per label, the first on top, of up to three `parts` [labels].

    Parts above 0 are to the right of 0, those below 0 to the left.
    """
    axes = new_axes((WIDE[0], 0.9 + 0.42 * len(labels)))
    below, above = np.zeros(len(labels)), np.zeros(len(labels))
    for (name, values), color in zip(parts.items(), (GRAY, ORANGE, RED), strict=False):
        axes.barh(labels, values, 0.62, left=np.where(values < 0, below, above), color=color, label=name)
        below, above = below + np.minimum(values, 0.0), above + np.maximum(values, 0.0)
    if (below < 0).any():
        axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.invert_yaxis()
    number_axes(axes, x_label, only_x=True)
    axes.grid(False, axis="y")
    axes.figure.legend(loc="outside upper center", ncols=len(parts), handlelength=0.9, columnspacing=1.3)
    return as_svg(axes)


@styled
def experience(
    steps: np.ndarray,
    results: np.ndarray,
    fit: tuple[np.ndarray, np.ndarray] | None,
    *,
    y_label: str,
    limits: tuple[float, float] | None,
) -> str:
    """Results [R, K] of R runs over `steps` [K] on a logarithmic axis: mean and range, and a fit (x, y)."""
    axes = new_axes()
    mean = results.mean(0)
    if len(results) > 1:
        axes.fill_between(steps, results.min(0), results.max(0), color=LIGHT_BLUE, linewidth=0, label="range")
    axes.plot(steps, mean, color=BLUE, label="mean" if len(results) > 1 else "run")
    if fit is not None:
        axes.plot(*fit, color=ORANGE, linestyle="--", linewidth=1.5, label="power law")
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 200 * low else (1.0, 3.0), numticks=12))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    if limits is not None:
        axes.set_ylim(*limits)
    axes.set_xlabel("agent steps")
    axes.set_ylabel(y_label)
    axes.legend(loc="best", handlelength=1.6)
    return as_svg(axes)


def colored(values: np.ndarray) -> np.ndarray:
    """uint8 [..., 3]: numbers from 0 to 1 as colours, from dark to bright."""
    return (255.0 * matplotlib.colormaps["viridis"](values)[..., :3]).round().astype(np.uint8)


def number_axes(axes: Any, x_label: str, *, only_x: bool = False) -> None:
    """Label the x axis, and show short numbers along the axes."""
    axes.set_xlabel(x_label)
    wide = axes.figure.get_figwidth() > SMALL[0]
    both = ((axes.xaxis, 8 if wide else 3, 4), (axes.yaxis, 6 if wide else 4, 2.5))
    for axis, count, middle in both[:1] if only_x else both:
        axis.set_major_locator(MaxNLocator(count, steps=sorted([1, 2, middle, 5, 10])))
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """A number in few characters: 250k, 1.5M, 0.003, 2e-5."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.4g}{letter}"
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.2g}".replace("e-0", "e-")
