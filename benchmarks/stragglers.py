"""DD-PPO, NoVER, VER and APPO with even simulators, uneven steps and uneven environments (VER's table 1).

A rank has 16 environments, each in its own process, and an LSTM policy that learns in 2 epochs of 2 mini-batches. The
simulators sleep:

- even: every step takes 0.1 s;
- by action: step times are log-normal with that mean and sigma 1;
- by environment: 2 of the 16 environments are ten times slower than the others.

NoVER is VER with the same number of steps from every environment. APPO learns from batches of the same size,
concurrently with collection. Figures are steps per second of all ranks: the mean over all rounds but the first, and
the best round. The ranks share the cores.

The last table has simulators that compute, on one rank: PointNav apartments of all sizes, and ViZDoom, with one
worker process per core.
"""

from __future__ import annotations

from pathlib import Path

from paceline.pool.config import available_core_ids

from .ranks import launch
from .report import Result, Table, context, make_result, print_context, print_table

SCENE = "obs=8&dtype=float32&episode_length=200"
SLEEPING = {
    "even": f"synthetic:constant?mean=0.1&{SCENE}",
    "by action": f"synthetic:lognormal?mean=0.1&sigma=1&{SCENE}",
    "by environment": f"synthetic:minority?mean=0.1&slow=10&fraction=0.125&{SCENE}",
}
SIMULATED = {
    "PointNav": "gym:paceline.sims.navigation:paceline/PointNav-v0?tier=full&resolution=64&scenes=64",
    "ViZDoom my_way_home": "doom:my_way_home",
}
SYSTEMS = ("DD-PPO", "NoVER", "VER", "APPO")
RATIOS = (("VER", "DD-PPO"), ("VER", "NoVER"), ("APPO", "VER"))
RANKS = (1, 2, 4, 8)
STEPS = 16
PLOT = Path("stragglers.png")

Rates = dict[tuple[str, str, int], tuple[float, float]]


def run(quick: bool) -> Result:
    facts = context()
    print_context(facts)
    ranks, seconds = ((1, 2), 2.0) if quick else (RANKS, 10.0)
    rates: Rates = {}
    for size in ranks:
        settings = [
            {"regime": regime, "env": env.replace("0.1&", "0.01&") if quick else env, "system": system}
            | {"steps": STEPS, "seconds": seconds}
            for regime, env in SLEEPING.items()
            for system in SYSTEMS
        ]
        for result in launch(f"{__package__}.stragglers_rank", size, settings):
            rates[result["regime"], result["system"], size] = result["mean"], result["best"]
            print(f"  {size} ranks, {result['regime']}, {result['system']}: {result['mean']:.0f}", flush=True)
    tables = [
        print_table(
            f"{regime.capitalize()}: steps per second, mean (best round)",
            ["ranks", *SYSTEMS, *map(" / ".join, RATIOS)],
            [[str(size), *cells(rates, regime, size)] for size in ranks],
            name=regime.replace(" ", "_"),
        )
        for regime in SLEEPING
    ]
    if not quick:
        plot(rates, ranks)
        print(f"\nplot: {PLOT}")
        tables.append(simulated(rates))
    return make_result("stragglers", facts, tables, measurements={str(key): value for key, value in rates.items()})


def simulated(rates: Rates) -> Table:
    """Measure simulators that compute, on one rank."""
    cores = len(available_core_ids())
    settings = [
        {"regime": name, "env": env, "system": system, "steps": 64, "seconds": 30.0, "images": True, "workers": cores}
        for name, env in SIMULATED.items()
        for system in SYSTEMS
    ]
    for result in launch(f"{__package__}.stragglers_rank", 1, settings):
        rates[result["regime"], result["system"], 1] = result["mean"], result["best"]
    return print_table(
        "Simulators that compute, one rank: steps per second, mean (best round)",
        ["simulator", *SYSTEMS, *map(" / ".join, RATIOS)],
        [[name, *cells(rates, name, 1)] for name in SIMULATED],
        name="computing",
    )


def cells(rates: Rates, regime: str, size: int) -> list[str]:
    mean = {system: rates[regime, system, size][0] for system in SYSTEMS}
    shown = [f"{mean[system]:,.0f} ({rates[regime, system, size][1]:,.0f})" for system in SYSTEMS]
    return [*shown, *(f"{mean[one] / mean[other]:.2f}" for one, other in RATIOS)]


def plot(rates: Rates, ranks: tuple[int, ...]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(SLEEPING), figsize=(11, 3.6))
    for axis, regime in zip(axes, SLEEPING, strict=True):
        for system in SYSTEMS:
            axis.plot(ranks, [rates[regime, system, size][0] for size in ranks], marker="o", label=system)
        axis.set(title=regime, xlabel="ranks", xscale="log", yscale="log")
        axis.set_xticks(ranks, [str(size) for size in ranks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("steps per second")
    axes[0].legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)
