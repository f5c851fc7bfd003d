"""How DD-PPO scales over ranks, with even and uneven simulators and several preemption thresholds (the paper's figure 4).

The paper's appendix D: every rank has 4 environments at random, collects and learns 10 times, and the steps of the
last 5 rounds are divided by their time; the same seeds for all numbers of ranks and all thresholds. Scaling is
relative to one rank of the same regime: the mean of what each of the largest number of ranks collects alone, since
its scenes may be slow or fast ones. Simulators sleep, as those on GPUs or other machines do; environments do not
differ (even), or by scene, log-normally, most within a factor of two (uneven). Policy, losses and the all-reduce are
real. Meant for a machine with about a core per rank: on fewer, ranks wait for cores, and that is what is measured.
Ranks that are measured alone are measured at the same time, as many as there are cores.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.ranks import launch
from benchmarks.report import context, print_context, print_table
from paceline.pool.config import available_core_ids

SCENE = "obs=8&dtype=float32&episode_length=200"
REGIMES = {
    "even": f"synthetic:constant?mean=0.02&{SCENE}",
    "uneven": f"synthetic:scene?mean=0.02&sigma=0.3&{SCENE}",
}
THRESHOLDS = (0.5, 0.6, 0.8, 1.0)
RANKS = (1, 2, 4, 8, 16)
STEPS = 24
PLOT = Path("scaling.png")


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    print_context(facts)
    ranks = (1, 2) if quick else RANKS
    thresholds = (0.6,) if quick else THRESHOLDS
    seeds = (1,) if quick else (1, 2)
    rates: dict[tuple[str, float, int], list[float]] = {}

    def measure(world: World) -> None:
        settings = [
            {"regime": regime, "env": env, "threshold": p, "seed": seed, "steps": 8 if quick else STEPS}
            | {"first": world.first}
            for seed in seeds
            for regime, env in REGIMES.items()
            for p in (thresholds if world.size > 1 else (1.0,))  # alone there is nobody to be preempted by
        ]
        for result in launch("benchmarks.scaling_rank", world.size, settings):
            key = (result["regime"], result["threshold"], world.size)
            rates.setdefault(key, []).append(result["steps_per_second"])
            print(f"  {world.size} ranks, {key[0]}, p = {key[1]:.0%}: {result['steps_per_second']:.0f} sps", flush=True)

    worlds = [World(size) for size in ranks if size > 1] + [World(1, first) for first in range(max(ranks))]
    for together in side_by_side(worlds, len(available_core_ids())):
        with ThreadPoolExecutor(len(together)) as threads:
            list(threads.map(measure, together))  # the list raises what went wrong
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


class World(NamedTuple):
    """Ranks that train together; their environments are those of ranks number `first` and on."""

    size: int
    first: int = 0


def side_by_side(worlds: list[World], cores: int) -> list[list[World]]:
    """Single ranks together, as many as there are cores; every world of several ranks for itself."""
    single = [world for world in worlds if world.size == 1]
    together = [single[at : at + cores] for at in range(0, len(single), cores)]
    return [[world] for world in worlds if world.size > 1] + together


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

    figure, axes = pyplot.subplots(1, len(scaling), figsize=(4 * len(scaling), 4), sharey=True)
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
    axes[-1].legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)
