"""How DD-PPO scales over ranks, with even and uneven simulators and several preemption thresholds (the paper's figure 4).

The paper's appendix D: every rank has 4 environments at random, collects and learns 10 times, and the steps of the last
5 rounds are divided by their time; the same seeds for all numbers of ranks and all thresholds. Scaling is relative to
one rank of the same regime. Simulators sleep, as those on GPUs or other machines do; environments differ by scene
(uneven) or do not (even). Policy, losses and the all-reduce are real. Meant for a machine with about a core per rank:
on fewer, ranks wait for cores, and that is what is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.report import context, print_context, print_table

SCENE = "obs=8&dtype=float32&episode_length=200"
REGIMES = {
    "even": f"synthetic:constant?mean=0.03&{SCENE}",
    "uneven": f"synthetic:scene?mean=0.03&sigma=0.7&{SCENE}",
}
THRESHOLDS = (0.5, 0.6, 0.8, 1.0)
RANKS = (1, 2, 4, 8, 16)
STEPS = 32
PLOT = Path("scaling.png")


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    print_context(facts)
    ranks = (1, 2) if quick else RANKS
    thresholds = (0.6,) if quick else THRESHOLDS
    seeds = (1,) if quick else (1, 2)
    rates: dict[tuple[str, float, int], list[float]] = {}
    for size in ranks:
        settings = [
            {"regime": regime, "env": env, "threshold": p, "seed": seed, "steps": 8 if quick else STEPS}
            for regime, env in REGIMES.items()
            for p in (thresholds if size > 1 else (1.0,))  # alone there is nobody to be preempted by
            for seed in seeds
        ]
        print(f"{size} ranks: {len(settings)} settings ...", flush=True)  # this takes minutes
        for result in launch(size, settings):
            key = (result["regime"], result["threshold"], size)
            rates.setdefault(key, []).append(result["steps_per_second"])
    scaling = relative(rates, ranks, thresholds)
    for regime in REGIMES:
        print_table(
            f"{regime} simulators: steps per second relative to one rank "
            f"({statistics.mean(rates[regime, 1.0, 1]):.0f}), mean of {len(seeds)} seeds",
            ["ranks", *(f"p = {p:.0%}" for p in thresholds)],
            [[str(size), *(f"{scaling[regime][p][size]:.2f}" for p in thresholds)] for size in ranks],
        )
    if not quick:
        plot(scaling, ranks)
        print(f"\nplot: {PLOT}")
    return {"context": facts, "rates": {str(key): value for key, value in rates.items()}, "scaling": scaling}


def launch(size: int, settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command += ["-m", "benchmarks.scaling_rank", json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    results = [
        json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if line.startswith("RESULT ")
    ]
    if len(results) != len(settings):
        raise RuntimeError(f"{size} ranks failed:\n{done.stdout}\n{done.stderr}")
    return results


def relative(rates: dict, ranks: tuple[int, ...], thresholds: tuple[float, ...]) -> dict[str, Any]:
    """Scaling by regime, threshold and number of ranks."""
    scaling: dict[str, Any] = {}
    for regime in REGIMES:
        alone = statistics.mean(rates[regime, 1.0, 1])
        scaling[regime] = {
            p: {size: statistics.mean(rates[regime, p if size > 1 else 1.0, size]) / alone for size in ranks}
            for p in thresholds
        }
    return scaling


def plot(scaling: dict[str, Any], ranks: tuple[int, ...]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 4), sharey=True)
    for axis, (regime, curves) in zip(axes, scaling.items(), strict=True):
        axis.plot(ranks, ranks, color="black", linestyle=":", label="ideal")
        for threshold, points in curves.items():
            axis.plot(ranks, [points[size] for size in ranks], marker="o", label=f"p = {threshold:.0%}")
        axis.set(title=f"{regime} simulators", xlabel="ranks", xscale="log", yscale="log")
        axis.set_xticks(ranks, [str(size) for size in ranks])
        axis.set_yticks(ranks, [str(size) for size in ranks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("steps per second, relative to one rank")
    axes[1].legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)
