"""Means of measures over episodes, with confidence intervals and by size, and their table for the terminal.

Legend: L episodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paceline.sims.navigation.evaluation.episode_list import scenes_in_words
from paceline.sims.navigation.evaluation.task_evaluation import Bins, Measured
from paceline.wording import counted

NUM_RESAMPLES = 2000


def summarize(evaluation: Measured, measures: dict[str, np.ndarray], seed: int = 0) -> dict[str, Any]:
    """Means with 95 % confidence intervals (percentile bootstrap over episodes), and means by the size of the task."""
    names = list(evaluation.measures)
    values = np.stack([measures[name] for name in names], 1)
    count, rng = len(values), np.random.default_rng(seed)
    resampled = np.stack([values[rng.integers(0, count, count)].mean(0) for _ in range(NUM_RESAMPLES)])
    summary: dict[str, Any] = {"episodes": count}
    for name, means in zip(names, resampled.T, strict=True):
        summary[name] = float(measures[name].mean())
        summary[f"{name}_ci95"] = [float(value) for value in np.quantile(means, (0.025, 0.975))]
    if evaluation.bins is not None:
        summary["by_distance"] = [
            {
                "from": low,
                "to": high,
                "episodes": int(within.sum()),
                **{name: float(measures[name][within].mean()) for name in names},
            }
            for low, high, within in binned(evaluation.bins, measures)
        ]
    return summary


def binned(bins: Bins, measures: Mapping[str, np.ndarray]) -> list[tuple[float, float, np.ndarray]]:
    """The bins that have episodes: lower and upper edge, and which episodes are within (bool [L]).

    Every episode is in one bin. The outer edges move, by whole numbers, to where they include all episodes.
    """
    sizes = measures[bins.measure]
    first, *inner, last = bins.edges
    edges = [min(first, float(np.floor(sizes.min()))), *inner, max(last, float(np.ceil(sizes.max())))]
    numbers = np.digitize(sizes, inner)
    parts = [(low, high, numbers == number) for number, (low, high) in enumerate(pairwise(edges))]
    return [(low, high, within) for low, high, within in parts if within.any()]


def table(evaluation: Measured, report: dict[str, Any]) -> Group:
    """The result of an evaluation for the terminal."""
    who = report.get("agent") or f"{report['checkpoint']}, {'sampled' if report['sampled'] else 'deterministic'}"
    times = f", {report['samples']} samples each" if report.get("samples", 1) > 1 else ""
    title = f"{counted(report['episodes'], 'episode')} of {scenes_in_words(report)}{times}: {who}"
    means = Table("", "mean", "95 % interval", box=None, header_style="bold", pad_edge=False)
    for name in evaluation.measures:
        low, high = report[f"{name}_ci95"]
        means.add_row(name.replace("_", " "), f"{report[name]:.3f}", f"{low:.3f} to {high:.3f}")
    method = f"intervals of the mean by percentile bootstrap over episodes, {NUM_RESAMPLES} resamples"
    parts: list[Table | Text] = [Text(title), means, Text(method)]
    if evaluation.bins is not None:
        parts += [Text(""), _by_distance(evaluation, report)]
    return Group(*parts)


def _by_distance(evaluation: Measured, report: dict[str, Any]) -> Table:
    names = list(evaluation.measures)
    columns: tuple[str, ...] = ("distance", "episodes", *(name.replace("_", " ") for name in names))
    distances = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for part in report["by_distance"]:
        values = [f"{part[name]:.3f}" for name in names]
        distances.add_row(f"{part['from']:g} to {part['to']:g} m", str(part["episodes"]), *values)
    return distances
