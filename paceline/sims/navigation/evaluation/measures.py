"""Means of measures over episodes, with confidence intervals and by distance, and their table for the terminal.

Legend: L episodes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

BIN_EDGES = (1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 16.0, 20.0, 25.0, 30.0)
"""Bins of the geodesic distance from start to goal, in metres."""
SUMMARIZED = ("spl", "success", "soft_spl", "distance_to_goal", "collisions")
NUM_RESAMPLES = 2000


def summarize(measures: dict[str, np.ndarray], seed: int = 0) -> dict[str, Any]:
    """Means with 95 % confidence intervals (percentile bootstrap over episodes), and means by distance."""
    count = len(measures["spl"])
    rng = np.random.default_rng(seed)
    values = np.stack([measures[name] for name in SUMMARIZED], 1)
    resampled = np.stack([values[rng.integers(0, count, count)].mean(0) for _ in range(NUM_RESAMPLES)])
    summary: dict[str, Any] = {"episodes": count}
    for name, means in zip(SUMMARIZED, resampled.T, strict=True):
        summary[name] = float(measures[name].mean())
        summary[f"{name}_ci95"] = [float(value) for value in np.quantile(means, (0.025, 0.975))]
    summary["by_distance"] = [
        {
            "from": low,
            "to": high,
            "episodes": int(within.sum()),
            **{name: float(measures[name][within].mean()) for name in SUMMARIZED},
        }
        for low, high, within in distance_bins(measures)
    ]
    return summary


def distance_bins(measures: dict[str, np.ndarray]) -> list[tuple[float, float, np.ndarray]]:
    """The bins that have episodes: lower and upper edge, and which episodes are within (bool [L])."""
    geodesic = measures["geodesic"]
    bins = [(low, high, (geodesic >= low) & (geodesic < high)) for low, high in pairwise(BIN_EDGES)]
    return [(low, high, within) for low, high, within in bins if within.any()]


def table(report: dict[str, Any]) -> Group:
    """The result of an evaluation for the terminal."""
    who = report.get("agent") or f"{report['checkpoint']}, {'sampled' if report['sampled'] else 'deterministic'}"
    times = f", {report['samples']} samples each" if report.get("samples", 1) > 1 else ""
    where = f"{report['split']} ({report['tier']}, {report['scenes']} scenes)"
    title = f"{report['episodes']} episodes of {where}{times}: {who}"
    means = Table("", "mean", "95 % interval", box=None, header_style="bold", pad_edge=False)
    for name in SUMMARIZED:
        low, high = report[f"{name}_ci95"]
        means.add_row(name.replace("_", " "), f"{report[name]:.3f}", f"{low:.3f} to {high:.3f}")
    columns: tuple[str, ...] = ("distance", "episodes", *(name.replace("_", " ") for name in SUMMARIZED))
    distances = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for part in report["by_distance"]:
        values = [f"{part[name]:.3f}" for name in SUMMARIZED]
        distances.add_row(f"{part['from']:g} to {part['to']:g} m", str(part["episodes"]), *values)
    method = f"intervals of the mean by percentile bootstrap over episodes, {NUM_RESAMPLES} resamples"
    return Group(Text(title), means, Text(method), Text(""), distances)
