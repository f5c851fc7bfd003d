"""Scaling of DD-PPO over ranks, with even and uneven simulators and several preemption thresholds (its figure 4).

As in the paper's appendix D, every rank has 4 environments and collects and learns for 10 rounds. The rate is the
steps of the last 5 rounds over their time. Scaling is relative to the mean rate of the same ranks when each trains
alone, because ranks differ in speed.

Simulators sleep. Policy, losses and all-reduce are real. There are three regimes:

- even: all simulators are alike;
- stragglers: the simulators of every fourth rank are three times slower, like a few large scenes among small ones;
- uneven: every environment has its own log-normal speed, most within a factor of two.

It needs about one core per rank. With fewer cores, use `--step-seconds` to make the simulators slower; otherwise the
ranks wait for cores. `python -m benchmarks.scaling --help` lists the options.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from paceline.pool.config import available_core_ids

from .ranks import launch
from .report import Result, command_line, context, make_result, print_context, print_table

SCENE = "obs=8&dtype=float32&episode_length=200"


@dataclass(frozen=True, kw_only=True)
class Regime:
    """How fast the simulators are."""

    kind: str
    """The kind of synthetic simulator."""
    sigma: float | None = None
    """The spread of its step times, for kinds that have one."""
    slowness: float = 1.0
    """Factor by which the simulators of ranks 1, 5, 9 and 13 are slower."""
    seeds: tuple[int, ...] = (1,)
    """Several where the speeds of environments are random."""

    def setting(self, threshold: float, seed: int, world: World, step_seconds: float) -> dict[str, Any]:
        """The options of one measurement of a rank."""
        means = {"env": step_seconds, "slow_env": step_seconds * self.slowness}
        spread = "" if self.sigma is None else f"&sigma={self.sigma}"
        envs = {name: f"synthetic:{self.kind}?mean={mean:g}{spread}&{SCENE}" for name, mean in means.items()}
        return envs | {"threshold": threshold, "seed": seed, "steps": STEPS, "first": world.first}


REGIMES = {
    "even": Regime(kind="constant"),
    # Not constant: a slow rank would always finish together with the fast ones, or always just miss them.
    "stragglers": Regime(kind="lognormal", sigma=0.2, slowness=3.0),
    "uneven": Regime(kind="scene", sigma=0.3, seeds=(1, 2)),
}
STEPS = 24
CORE_SECONDS = 0.04
"""Core time that a step of a rank needs, doubled. It limits how many ranks are measured alone at the same time."""
PLOT = Path("scaling.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    regimes: tuple[str, ...] = tuple(REGIMES)
    ranks: tuple[int, ...] = (2, 4, 8, 16)
    """Numbers of ranks, besides one."""
    thresholds: tuple[float, ...] = (0.5, 0.6, 0.8, 1.0)
    step_seconds: float = 0.02
    """Mean time of a simulator step. Longer steps need fewer cores."""


class World(NamedTuple):
    """Ranks that train together. Their environments are those of rank `first` and the ranks after it."""

    size: int
    first: int = 0


Rates = dict[tuple[str, int, float, World], float]
"""Steps per second, by regime, seed, threshold and world."""


def run(quick: bool) -> Result:
    return measure(Plan(regimes=("even", "stragglers"), ranks=(2,), thresholds=(0.6,)) if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    rates: Rates = {}
    for size in plan.ranks:
        rates |= measure_world(World(size), plan)
    rates |= measure_alone(replace(plan, thresholds=(1.0,)))
    scaling = relative(rates, plan)
    tables = [
        print_table(
            f"Simulators: {regime}; steps per second relative to one rank ({one_rank(rates, regime):.0f})",
            ["ranks", *(f"p = {p:.0%}" for p in curves)],
            [[str(size), *(f"{points[size]:.2f}" for points in curves.values())] for size in (1, *plan.ranks)],
            name=regime,
        )
        for regime, curves in scaling.items()
    ]
    if len(plan.ranks) > 1:
        plot(scaling)
        print(f"\nplot: {PLOT}")
    return make_result("scaling", facts, tables, measurements={str(key): value for key, value in rates.items()})


def measure_alone(plan: Plan) -> Rates:
    """The rate of each rank without other ranks that could preempt it."""
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
    for key, result in zip(keys, launch(f"{__package__}.scaling_rank", world.size, settings), strict=True):
        rates[key] = result["steps_per_second"]
        regime, seed, threshold, _ = key
        ranks = f"{world.size} ranks" if world.size > 1 else f"rank {world.first} alone"
        print(f"  {ranks}, {regime} (seed {seed}), p = {threshold:.0%}: {rates[key]:.0f} sps", flush=True)
    return rates


def relative(rates: Rates, plan: Plan) -> dict[str, dict[float, dict[int, float]]]:
    """Scaling by regime, threshold and number of ranks, as means over the seeds."""

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
    """Mean steps per second of ranks that train alone."""
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
    command_line("scaling", Plan, measure, __doc__)
