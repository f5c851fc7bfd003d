"""Plots learning curves: `python -m benchmarks.curves OUT.png KEY LABEL=METRICS.jsonl[,METRICS.jsonl...] ...`.

Several files of one label are seeds. The plot shows their mean, with a band from the lowest to the highest.
"""

from __future__ import annotations

import json
import sys

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot

POINTS = 200


def read(path: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of all reports that have the key."""
    with open(path) as file:
        reports = [json.loads(line) for line in file]
    kept = [(report["step"], report[key]) for report in reports if report.get(key) is not None]
    if not kept:
        raise SystemExit(f"{path} has no report with {key!r}")
    steps, values = zip(*kept, strict=True)
    return np.array(steps), np.array(values)


def main() -> None:
    out, key, *groups = sys.argv[1:]
    figure, axis = pyplot.subplots(figsize=(7, 4))
    for group in groups:
        label, _, paths = group.partition("=")
        seeds = [read(path, key) for path in paths.split(",")]
        steps = np.linspace(max(s[0] for s, _ in seeds), min(s[-1] for s, _ in seeds), POINTS)
        values = np.stack([np.interp(steps, s, v) for s, v in seeds])
        (line,) = axis.plot(steps, values.mean(0), label=label)
        if len(seeds) > 1:
            axis.fill_between(steps, values.min(0), values.max(0), color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set(xlabel="agent steps", ylabel=key.replace("_", " "))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main()
