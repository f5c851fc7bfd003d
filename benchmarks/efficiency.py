"""Sample efficiency: return over steps and over time of DD-PPO, VER and APPO on the same tasks, three seeds each.

Every run has two cores, and environments run in worker processes, so that VER and APPO take them as they come. Returns are means of the
latest 100 episodes; the tables have their mean over all steps that every run of a task has made, which says how few are needed, and that
of the reports of the last tenth of a run; means over seeds with a 95 % interval (Student's t). Between them is the first as the
difference from the first system, seed by seed, so that a seed that is easy for all counts for none.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.learning import Curve, Curves, Job, final, interval, over_steps, plot, steps_to, train_all
from benchmarks.report import context, print_context, print_table

POINTNAV = "gym:paceline.sims.navigation:paceline/PointNav-v0?tier=small&resolution=32&scenes=64"
TASKS = {
    "CartPole": "cartpole --steps 100000 --pool.num-envs 16",
    "Memory": "memory --steps 100000",
    "Acrobot": "cartpole --env gym:Acrobot-v1 --steps 150000 --pool.num-envs 16",
    "PointNav, small": f"pointnav-small --env {POINTNAV} --seconds None --steps 60000 --pool.num-envs 16",
}
LONG_TASKS = {
    "Doom basic": "doom_basic --pool.workers 4",
    "Doom my_way_home": "doom_my_way_home --pool.workers 4",
}
"""A quarter of an hour each on two cores, and more than an hour: only where they are asked for."""
SYSTEMS = {name: f"--system {name}" for name in ("ddppo", "ver", "appo")}
VARIANTS = {
    "ddppo, packed": "--system ddppo --ppo.sequences packed",
    "ddppo, eager": "--system ddppo --ppo.sequences columns --compute.no-cuda-graphs",
    "ver, even": "--system ver --ver.no-variable",
    "appo, in turns": "--system appo --ppo.clip-around acting --appo.beside False",
    "appo, no V-trace": "--system appo --ppo.targets gae --ppo.clip-around acting",
    "appo, acting": "--system appo --ppo.clip-around acting",
    "appo, update": "--system appo --ppo.clip-around update",
    "appo, chunks of 32": "--system appo --ppo.clip-around acting --rollout-steps 32",
}
"""To ask where a difference comes from. Those of appo have ratios to the policy that acted, whatever the recipe has, but for "update"."""
PLOT = Path("efficiency.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which part of it to run."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Of the usual ones, and of the long ones: Doom basic, Doom my_way_home."""
    systems: tuple[str, ...] = tuple(SYSTEMS)
    """Of ddppo, ver and appo, and of their variants: "ddppo, packed", "ddppo, eager", "ver, even", "appo, in turns", "appo, no V-trace",
    "appo, acting", "appo, update", "appo, chunks of 32"."""
    seeds: tuple[int, ...] = (1, 2, 3)
    seconds: float | None = None
    """An end of each run, beside its number of steps."""
    since: int = 0
    """Steps before that do not count in returns over all steps: the first hundred episodes to end are the short ones."""
    reach: float | None = None
    """Also say how many steps it takes to this return, with one task."""
    device: Literal["cpu", "cuda"] = "cpu"
    at_once: int | None = None
    """Runs at a time, which share all cores; by default one for every pair of cores, which it has for itself."""
    keep: Path | None = None
    """A folder for the reports of all runs. Those that are there already, of the same arguments, are not run again."""

    def __post_init__(self) -> None:
        for asked, known in ((self.tasks, TASKS | LONG_TASKS), (self.systems, SYSTEMS | VARIANTS)):
            for name in asked:
                if name not in known:
                    raise SystemExit(f"{name!r} is none of {', '.join(map(repr, known))}")
        if self.reach is not None and len(self.tasks) != 1:
            raise SystemExit(f"--reach is a return of one task; asked for are {', '.join(map(repr, self.tasks))}")


def run(quick: bool) -> dict[str, Any]:
    return measure(Plan(tasks=("CartPole",), seeds=(1, 2)) if quick else Plan(), context(), quick)


def measure(plan: Plan, facts: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    print_context(facts)
    commands = {"CartPole": "cartpole --steps 10000 --pool.num-envs 8"} if quick else TASKS | LONG_TASKS
    limit = [] if plan.seconds is None else ["--seconds", str(plan.seconds)]
    jobs: dict[Job, list[str]] = {
        (task, system, seed): [
            *commands[task].split(),
            *(SYSTEMS | VARIANTS)[system].split(),
            *("--seed", str(seed), "--pool.kind", "process"),
            *limit,
        ]
        for task in plan.tasks
        for seed in plan.seeds
        for system in plan.systems
    }
    found = train_all(jobs, device=plan.device, at_once=plan.at_once, keep=plan.keep)
    curves: Curves = {
        (task, system): [found[task, system, seed] for seed in plan.seeds]
        for task in plan.tasks
        for system in plan.systems
    }
    print_returns(plan, curves)
    if plan.reach is not None:
        print_steps(plan.reach, plan.since, {system: curves[plan.tasks[0], system] for system in plan.systems})
    if not quick:
        plot(curves, list(plan.tasks), list(plan.systems), PLOT)
        print(f"\nplot: {PLOT}")
    returns = {f"{task}, {system}": [final(c) for c in of_seeds] for (task, system), of_seeds in curves.items()}
    return {"context": facts, "final_returns": returns}


def print_returns(plan: Plan, curves: Curves) -> None:
    seeds = f"mean of {len(plan.seeds)} seeds and 95 % interval"
    ends = {task: int(min(c.steps[-1] for s in plan.systems for c in curves[task, s])) for task in plan.tasks}
    over = {
        (task, system): [over_steps(curve, ends[task], plan.since) for curve in of_seeds]
        for (task, system), of_seeds in curves.items()
    }
    print_table(
        f"return over the steps that all have made{f', from {plan.since:,} on' if plan.since else ''}, {seeds}",
        ["task", "steps", *plan.systems],
        [[task, f"{ends[task]:,}", *(interval(over[task, system]) for system in plan.systems)] for task in plan.tasks],
    )
    first, *others = plan.systems
    if others:
        print_table(
            f"the same less that of {first}, seed by seed",
            ["task", *others],
            [
                [task, *(interval(less(over[task, system], over[task, first])) for system in others)]
                for task in plan.tasks
            ],
        )
    print_table(
        f"return at the end, {seeds}",
        ["task", *plan.systems],
        [
            [task, *(interval([final(c) for c in curves[task, system]]) for system in plan.systems)]
            for task in plan.tasks
        ],
    )


def print_steps(reach: float, since: int, of_systems: dict[str, list[Curve]]) -> None:
    """The first system is what others are compared with. Where a seed never has the return there is no mean, but there may be a median."""
    steps = {system: [steps_to(curve, reach, since) for curve in curves] for system, curves in of_systems.items()}
    first = next(iter(steps.values()))
    rows = []
    for system, of_seeds in steps.items():
        reached = sum(map(math.isfinite, of_seeds))
        median = statistics.median(of_seeds)
        more = less(of_seeds, first)
        rows.append(
            [
                system,
                f"{reached} of {len(of_seeds)}",
                f"{median:,.0f}" if math.isfinite(median) else "never",
                interval(of_seeds, ",.0f") if reached == len(of_seeds) else "",
                interval(more, ",.0f") if of_seeds is not first and all(map(math.isfinite, more)) else "",
            ]
        )
    columns = ["system", "seeds", "median", "mean and 95 % interval", f"more than {next(iter(steps))}, seed by seed"]
    print_table(f"steps to a return of {reach:g}", columns, rows)


def less(these: list[float], those: list[float]) -> list[float]:
    return [this - that for this, that in zip(these, those, strict=True)]


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__), context("python -m benchmarks.efficiency"))
