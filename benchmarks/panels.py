"""A picture of learning curves with one small panel for every task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from .learning import Curve, draw

COLUMNS = 4
"""The most panels beside each other."""

Panels = dict[str, dict[str, list[Curve]]]
"""By title and label: one curve for each seed."""


def draw_panels(panels: Panels, path: Path, columns: int = COLUMNS) -> None:
    """Draw returns over the time of training. A label has the same color in all panels."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = (3.0 * columns, 2.3 * rows + 0.4)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    labels = list(dict.fromkeys(label for curves in panels.values() for label in curves))
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    lines: dict[str, Any] = {}
    for (title, curves), axis in zip(panels.items(), axes.flat, strict=False):
        for label, seeds in curves.items():
            if seeds:
                color = f"C{labels.index(label)}"
                draw(axis, label, [(curve.seconds, curve.returns) for curve in seeds], color)
        lines |= {label: line for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        axis.set_title(title, fontsize="small")
        axis.tick_params(labelsize="x-small")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("seconds", fontsize="small")
    for row in axes:
        row[0].set_ylabel("return", fontsize="small")
    figure.legend(list(lines.values()), list(lines), loc="outside lower center", ncols=columns, fontsize="small")
    figure.savefig(path, dpi=110)
