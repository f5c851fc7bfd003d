"""How DD-PPO scales over ranks, with even and uneven simulators and several preemption thresholds (the paper's figure 4).

The paper's appendix D: every rank has 4 environments, collects and learns 10 times, and the steps of the last 5 rounds are
divided by their time; the same seeds for all numbers of ranks and all thresholds. Scaling is relative to one rank: to
the mean of what the very same ranks collect when each is alone, since simulators may be slow or fast ones. Simulators
sleep, as those on GPUs or other machines do. They do not differ (even); or those of every fourth rank are three times slower
(stragglers), as a few large scenes are among small ones; or every environment is of another speed, log-normally, most
within a factor of two (uneven). Policy, losses and the all-reduce are real. Meant for a machine with about a core per
rank: on fewer, ranks wait for cores, and that is what is measured, unless `--step-seconds` makes simulators slower. Ranks that are
measured alone are measured at the same time, half as many as there are cores for. `python -m benchmarks.scaling --help` has
the choices of a part of it.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import tyro

from benchmarks.ranks import launch
from benchmarks.report import context, print_context, print_table
from paceline.pool.config import available_core_ids

SCENE = "obs=8&dtype=float32&episode_length=200"


@dataclass(frozen=True, kw_only=True)
class Regime:
    """How fast simulators are."""

    kind: str
    """Of synthetic simulator."""
    sigma: float | None = None
    """Its spread, where it has one."""
    slowness: float = 1.0
    """How much longer those of ranks 1, 5, 9 and 13 take."""
    seeds: tuple[int, ...] = (1,)
    """Where environments are drawn, several."""

    def setting(self, threshold: float, seed: int, world: World, step_seconds: float) -> dict[str, Any]:
        """What a rank is told to measure."""
        means = {"env": step_seconds, "slow_env": step_seconds * self.slowness}
        spread = "" if self.sigma is None else f"&sigma={self.sigma}"
        envs = {name: f"synthetic:{self.kind}?mean={mean:g}{spread}&{SCENE}" for name, mean in means.items()}
        return envs | {"threshold": threshold, "seed": seed, "steps": STEPS, "first": world.first}


REGIMES = {
    "even": Regime(kind="constant"),
    # Not constant: three slow steps would always end together with nine fast ones, or always just miss them.
    "stragglers": Regime(kind="lognormal", sigma=0.2, slowness=3.0),
    "uneven": Regime(kind="scene", sigma=0.3, seeds=(1, 2)),
}
STEPS = 24
CORE_SECONDS = 0.04
"""Of a core, for each step of a rank that is measured alone, so that it does not wait for cores: twice what would do."""
PLOT = Path("scaling.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which part of it to measure."""

    regimes: tuple[str, ...] = tuple(REGIMES)
    ranks: tuple[int, ...] = (2, 4, 8, 16)
    """Numbers of ranks beside one."""
    thresholds: tuple[float, ...] = (0.5, 0.6, 0.8, 1.0)
    step_seconds: float = 0.02
    """What a step takes on average. With longer ones, fewer cores are enough."""


class World(NamedTuple):
    """Ranks that train together; their environments are those of ranks number `first` and on."""

    size: int
    first: int = 0


Rates = dict[tuple[str, int, float, World], float]
"""Steps per second, by regime, seed, threshold and world."""


def run(quick: bool) -> dict[str, Any]:
    return measure(Plan(regimes=("even", "stragglers"), ranks=(2,), thresholds=(0.6,)) if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> dict[str, Any]:
    print_context(facts)
    rates: Rates = {}
    for size in plan.ranks:
        rates |= measure_world(World(size), plan)
    rates |= measure_alone(replace(plan, thresholds=(1.0,)))
    scaling = relative(rates, plan)
    for regime, curves in scaling.items():
        print_table(
            f"simulators: {regime}; steps per second relative to one rank ({one_rank(rates, regime):.0f})",
            ["ranks", *(f"p = {p:.0%}" for p in curves)],
            [[str(size), *(f"{points[size]:.2f}" for points in curves.values())] for size in (1, *plan.ranks)],
        )
    if len(plan.ranks) > 1:
        plot(scaling)
        print(f"\nplot: {PLOT}")
    return {"context": facts, "rates": {str(key): value for key, value in rates.items()}, "scaling": scaling}


def measure_alone(plan: Plan) -> Rates:
    """What each rank collects when there is nobody to be preempted by."""
    rates: Rates = {}
    at_once = len(available_core_ids()) * plan.step_seconds / CORE_SECONDS
    with ThreadPoolExecutor(max(1, int(at_once))) as threads:
        for found in threads.map(lambda first: measure_world(World(1, first), plan), range(max(plan.ranks))):
            rates |= found
    return rates


def measure_world(world: World, plan: Plan) -> Rates:
    keys = [
        (regime, seed, threshold, world)
        for regime in plan.regimes
        for seed in REGIMES[regime].seeds
        for threshold in plan.thresholds
    ]
    settings = [
        REGIMES[regime].setting(threshold, seed, world, plan.step_seconds) for regime, seed, threshold, _ in keys
    ]
    rates: Rates = {}
    for key, result in zip(keys, launch("benchmarks.scaling_rank", world.size, settings), strict=True):
        rates[key] = result["steps_per_second"]
        regime, seed, threshold, _ = key
        ranks = f"{world.size} ranks" if world.size > 1 else f"rank {world.first} alone"
        print(f"  {ranks}, {regime} (seed {seed}), p = {threshold:.0%}: {rates[key]:.0f} sps", flush=True)
    return rates


def relative(rates: Rates, plan: Plan) -> dict[str, dict[float, dict[int, float]]]:
    """Scaling by regime, threshold and number of ranks: means over the seeds."""

    def scaling(regime: str, threshold: float, size: int) -> float:
        seeds = REGIMES[regime].seeds
        if size == 1:
            return 1.0
        return statistics.mean(
            rates[regime, seed, threshold, World(size)]
            / statistics.mean(rates[regime, seed, 1.0, World(1, first)] for first in range(size))
            for seed in seeds
        )

    return {
        regime: {p: {size: scaling(regime, p, size) for size in (1, *plan.ranks)} for p in plan.thresholds}
        for regime in plan.regimes
    }


def one_rank(rates: Rates, regime: str) -> float:
    """Steps per second of all lone ranks, on average."""
    return statistics.mean(rate for key, rate in rates.items() if key[0] == regime and key[3].size == 1)


def plot(scaling: dict[str, dict[float, dict[int, float]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, len(scaling), figsize=(4 * len(scaling), 4), sharey=True, squeeze=False)
    for axis, (regime, curves) in zip(row[0], scaling.items(), strict=True):
        for threshold, points in curves.items():
            axis.plot(list(points), list(points.values()), marker="o", label=f"p = {threshold:.0%}")
        ranks = list(points)
        axis.plot(ranks, ranks, color="black", linestyle=":", label="ideal")
        axis.set(title=f"simulators: {regime}", xlabel="ranks", xscale="log", yscale="log")
        axis.set_xticks(ranks, [str(size) for size in ranks])
        axis.set_yticks(ranks, [str(size) for size in ranks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    row[0][0].set_ylabel("steps per second, relative to one rank")
    row[0][-1].legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__), context("python -m benchmarks.scaling"))
