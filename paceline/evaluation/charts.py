"""The charts of a report, drawn by matplotlib. Each function returns one SVG picture as a data URI.

Figures are made without pyplot: nothing global changes, and no display is needed.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

INK, MUTED, GRID = "#1e293b", "#64748b", "#e2e8f0"
BLUE, LIGHT_BLUE, ORANGE, GREEN, RED = "#2563eb", "#bfdbfe", "#ea580c", "#16a34a", "#dc2626"
COLORS = (BLUE, ORANGE, GREEN, "#9333ea", "#0891b2", "#94a3b8")
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text, in the fonts of the page
    "font.size": 10.0,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#cbd5e1",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
MANY_POINTS = 120
"""A curve of more points is drawn faintly, with its running mean on top."""
SMOOTHED_SHARE = 0.03

WIDE, SMALL = (5.6, 2.9), (2.75, 1.75)
"""Inches, at 72 SVG points each; the page scales them."""


class Canvas:
    """A figure of one chart; `uri` is there when the drawing is over."""

    def __init__(self, size: tuple[float, float]) -> None:
        self.figure = Figure(figsize=size, layout="constrained")
        self.axes = self.figure.add_subplot()
        self.uri = ""


@contextmanager
def drawing(size: tuple[float, float]) -> Iterator[Canvas]:
    with matplotlib.rc_context(STYLE):
        canvas = Canvas(size)
        yield canvas
        file = io.StringIO()
        canvas.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    text = file.getvalue().replace("'DejaVu Sans'", FONTS)
    canvas.uri = data_uri("image/svg+xml", text.encode())


def data_uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def curves(
    x: np.ndarray,
    series: Mapping[str, np.ndarray],
    *,
    x_label: str,
    size: tuple[float, float] = WIDE,
    limits: tuple[float, float] | None = None,
) -> str:
    """Lines over a common x, with a legend where there are several."""
    with drawing(size) as canvas:
        axes = canvas.axes
        for (label, values), color in zip(series.items(), COLORS, strict=False):
            known = np.isfinite(values)
            _line(axes, x[known], values[known], color, label)
        if limits is not None:
            axes.set_ylim(*limits)
        _number_axes(axes, x_label)
        axes.margins(x=0.01)
        if len(series) > 1:
            axes.legend(loc="best", ncols=len(series), handlelength=1.2, columnspacing=1.2)
    return canvas.uri


def _line(axes: Any, x: np.ndarray, values: np.ndarray, color: str, label: str) -> None:
    if len(x) <= MANY_POINTS or np.ptp(values) == 0:  # of what is constant, a mean would show rounding errors
        few = {"marker": "o", "markersize": 3.0} if len(x) <= 3 else {}
        axes.plot(x, values, color=color, label=label, **few)
        return
    axes.plot(x, values, color=color, alpha=0.28, linewidth=0.9)
    axes.plot(x, running_mean(values, max(3, round(SMOOTHED_SHARE * len(x)))), color=color, label=label)


def running_mean(values: np.ndarray, width: int) -> np.ndarray:
    """The mean of about `width` neighbours on both sides together; of fewer at the ends."""
    half = width // 2
    sums = np.concatenate([[0.0], np.cumsum(values)])
    start = np.maximum(np.arange(len(values)) - half, 0)
    end = np.minimum(np.arange(len(values)) + half + 1, len(values))
    return (sums[end] - sums[start]) / (end - start)


def shares(x: np.ndarray, parts: Mapping[str, np.ndarray], *, x_label: str) -> str:
    """What a whole consists of, stacked; `parts` add up to 1."""
    with drawing(WIDE) as canvas:
        axes = canvas.axes
        stack = np.nan_to_num(np.stack(list(parts.values())))
        if len(x) > MANY_POINTS:
            width = max(3, round(SMOOTHED_SHARE * len(x)))
            stack = np.stack([running_mean(row, width) for row in stack])
        if len(x) == 1:  # an area needs two ends
            x, stack = np.array([0.0, x[0]]), np.repeat(stack, 2, 1)
        axes.stackplot(x, stack, labels=list(parts), colors=COLORS, alpha=0.85, linewidth=0)
        axes.set_ylim(0.0, 1.0)
        _number_axes(axes, x_label)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        axes.margins(x=0.0)
        axes.grid(False)
        canvas.figure.legend(loc="outside lower center", ncols=min(len(parts), 6), handlelength=0.9, columnspacing=1.1)
    return canvas.uri


def bars_by_distance(
    labels: Sequence[str],
    bars: Mapping[str, tuple[np.ndarray, np.ndarray]],
    marks: tuple[str, np.ndarray] | None = None,
) -> str:
    """Groups of bars, one for each label, of means and their intervals [groups, 2]; `marks` are drawn across them."""
    with drawing(WIDE) as canvas:
        axes, at = canvas.axes, np.arange(len(labels))
        width = 0.76 / len(bars)
        for index, ((name, (means, intervals)), color) in enumerate(
            zip(bars.items(), (LIGHT_BLUE, BLUE), strict=False)
        ):
            place = at + (index - (len(bars) - 1) / 2) * width
            spread = np.abs(intervals.T - means)
            axes.bar(place, means, width * 0.92, color=color, label=name)
            axes.errorbar(place, means, spread, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2, alpha=0.7)
        if marks is not None:
            name, values = marks
            axes.hlines(values, at - 0.4, at + 0.4, color=ORANGE, linewidth=2.0, label=name)
        axes.set_xticks(at, labels)
        axes.set_ylim(0.0, 1.05)
        axes.grid(False, axis="x")
        axes.set_xlabel("geodesic distance from start to goal")
        canvas.figure.legend(loc="outside upper center", ncols=3, handlelength=1.2)
    return canvas.uri


def histogram(values: np.ndarray, *, x_label: str, split: float) -> str:
    """Of numbers from 0 to 1 in steps of 0.05; what is at `split` or below is drawn as failure."""
    with drawing(WIDE) as canvas:
        axes, edges = canvas.axes, np.linspace(0.0, 1.0, 21).tolist()
        failed = values <= split
        for kept, name, color in ((~failed, "reached, but not on the shortest path", BLUE), (failed, "failed", RED)):
            if kept.any():
                axes.hist(values[kept], edges, color=color, label=name, rwidth=0.88)
        axes.set_xlabel(x_label)
        axes.set_ylabel("episodes")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.grid(False, axis="x")
        axes.set_xlim(-0.01, 1.01)
        canvas.figure.legend(loc="outside upper center", ncols=2, handlelength=1.2)
    return canvas.uri


def colored(values: np.ndarray) -> np.ndarray:
    """uint8 [..., 3]: numbers from 0 to 1 as colours from dark to bright."""
    return (255.0 * matplotlib.colormaps["viridis"](values)[..., :3]).round().astype(np.uint8)


def _number_axes(axes: Any, x_label: str) -> None:
    axes.set_xlabel(x_label)
    wide = axes.figure.get_figwidth() > SMALL[0]
    for axis, count, middle in ((axes.xaxis, 8 if wide else 3, 4), (axes.yaxis, 6 if wide else 4, 2.5)):
        axis.set_major_locator(MaxNLocator(count, steps=sorted([1, 2, middle, 5, 10])))
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """A number as a person would write it in little space: 250k, 1.5M, 0.003, 2e-5."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            unit = 1e3 if letter == "k" else size
            return f"{value / unit:.4g}{letter}"
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:.2g}".replace("e-0", "e-")
