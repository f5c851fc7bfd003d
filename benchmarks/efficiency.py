"""Sample efficiency: return over steps and over time of DD-PPO, VER and APPO on the same tasks, with three seeds.

Every run has two cores, and environments run in worker processes. A return is the mean of the latest 100 episodes.
The tables show:

- its mean over the steps that every run of a task has made, which is higher the sooner a run learns;
- the difference of that mean from the first system, by seed, so that easy seeds favour no system;
- its mean over the last tenth of a run.

All are means over seeds with a 95 % interval (Student's t).
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .learning import Curve, Curves, Job, final, interval, over_steps, plot, steps_to, train_all
from .report import Result, Table, command_line, context, make_result, print_context, print_table

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
"""A quarter of an hour and more than an hour on two cores: they run only if named."""
SYSTEMS = {name: f"--system {name}" for name in ("ddppo", "ver", "appo")}
VARIANTS = {
    "ddppo, packed": "--system ddppo --ppo.sequences packed",
    "ddppo, eager": "--system ddppo --ppo.sequences columns --compute.no-cuda-graphs",
    "ver, even": "--system ver --ver.no-variable",
    "appo, in turns": "--system appo --ppo.clip-around acting --appo.concurrent False",
    "appo, no V-trace": "--system appo --ppo.targets gae --ppo.clip-around acting",
    "appo, acting": "--system appo --ppo.clip-around acting",
    "appo, update": "--system appo --ppo.clip-around update",
    "appo, chunks of 32": "--system appo --ppo.clip-around acting --rollout-steps 32",
}
"""To find the cause of a difference. Variants of appo clip around the policy that acted, except "appo, update"."""
PLOT = Path("efficiency.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """By default all short ones. The long ones are "Doom basic" and "Doom my_way_home"."""
    systems: tuple[str, ...] = tuple(SYSTEMS)
    """ddppo, ver, appo, or variants: "ddppo, packed", "ddppo, eager", "ver, even", "appo, in turns", "appo, no
    V-trace", "appo, acting", "appo, update", "appo, chunks of 32"."""
    seeds: tuple[int, ...] = (1, 2, 3)
    seconds: float | None = None
    """Time limit of each run, in addition to its number of steps."""
    since: int = 0
    """First step that counts in returns over all steps. The first hundred episodes to end are the short ones."""
    reach: float | None = None
    """Also show the steps to this return. Needs exactly one task."""
    device: Literal["cpu", "cuda"] = "cpu"
    at_once: int | None = None
    """Concurrent runs, which share all cores. By default every run has two cores of its own."""
    keep: Path | None = None
    """A folder for the reports of all runs. A run whose reports are there already is not repeated."""

    def __post_init__(self) -> None:
        for asked, known in ((self.tasks, TASKS | LONG_TASKS), (self.systems, SYSTEMS | VARIANTS)):
            for name in asked:
                if name not in known:
                    raise SystemExit(f"{name!r} does not exist; allowed: {', '.join(map(repr, known))}")
        if self.reach is not None and len(self.tasks) != 1:
            raise SystemExit(f"--reach needs exactly one task, not {', '.join(map(repr, self.tasks))}")


def run(quick: bool) -> Result:
    return measure(Plan(tasks=("CartPole",), seeds=(1, 2)) if quick else Plan(), context(), quick)


def measure(plan: Plan, facts: dict[str, Any], quick: bool = False) -> Result:
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
    tables = print_returns(plan, curves)
    if plan.reach is not None:
        of_systems = {system: curves[plan.tasks[0], system] for system in plan.systems}
        tables.append(print_steps(plan.reach, plan.since, of_systems))
    if not quick:
        plot(curves, list(plan.tasks), list(plan.systems), PLOT)
        print(f"\nplot: {PLOT}")
    returns = {f"{task}, {system}": [final(c) for c in of_seeds] for (task, system), of_seeds in curves.items()}
    return make_result("efficiency", facts, tables, measurements=returns)


def print_returns(plan: Plan, curves: Curves) -> list[Table]:
    seeds = f"mean of {len(plan.seeds)} seeds and 95 % interval"
    ends = {task: int(min(c.steps[-1] for s in plan.systems for c in curves[task, s])) for task in plan.tasks}
    over = {
        (task, system): [over_steps(curve, ends[task], plan.since) for curve in of_seeds]
        for (task, system), of_seeds in curves.items()
    }
    since = f", from {plan.since:,} on" if plan.since else ""
    rows = [[task, f"{ends[task]:,}", *(interval(over[task, s]) for s in plan.systems)] for task in plan.tasks]
    columns = ["task", "steps", *plan.systems]
    tables = [
        print_table(f"Return over the steps that all have made{since}, {seeds}", columns, rows, name="over_steps")
    ]
    first, *others = plan.systems
    if others:
        rows = [[task, *(interval(less(over[task, s], over[task, first])) for s in others)] for task in plan.tasks]
        title = f"Difference of that return from {first}, by seed"
        tables.append(print_table(title, ["task", *others], rows, name="difference"))
    ends_of = {key: interval([final(curve) for curve in of_seeds]) for key, of_seeds in curves.items()}
    rows = [[task, *(ends_of[task, s] for s in plan.systems)] for task in plan.tasks]
    return [*tables, print_table(f"Return at the end, {seeds}", ["task", *plan.systems], rows, name="at_the_end")]


def print_steps(reach: float, since: int, of_systems: dict[str, list[Curve]]) -> Table:
    """Steps to a return, and the difference from the first system. There is no mean if a seed never reaches it."""
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
    columns = ["system", "seeds", "median", "mean and 95 % interval", f"more than {next(iter(steps))}, by seed"]
    return print_table(f"Steps to a return of {reach:g}", columns, rows, name="steps")


def less(these: list[float], those: list[float]) -> list[float]:
    return [this - that for this, that in zip(these, those, strict=True)]


if __name__ == "__main__":
    command_line("efficiency", Plan, measure, __doc__)
