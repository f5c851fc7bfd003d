"""Sample efficiency: return over steps and over time of DD-PPO, VER and APPO on the same tasks, three seeds each.

Every run has two cores, and environments run in worker processes, so that VER and APPO take them as they come. Returns are means of the
latest 100 episodes; the tables have their mean over all steps that every run of a task has made, which says how few are needed, and that
of the reports of the last tenth of a run; means over seeds with a 95 % interval (Student's t).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from benchmarks.learning import Curves, Job, final, interval, over_steps, plot, train_all
from benchmarks.report import context, print_context, print_table

POINTNAV = "gym:paceline.envs.pointnav:paceline/PointNav-v0?tier=small&resolution=32&scenes=64"
TASKS = {
    "CartPole": "cartpole --steps 100000 --pool.num-envs 16",
    "Acrobot": "cartpole --env gym:Acrobot-v1 --steps 150000 --pool.num-envs 16",
    "PointNav, small": f"pointnav-small --env {POINTNAV} --seconds None --steps 60000 --pool.num-envs 16",
}
LONG_TASKS = {
    "Doom my_way_home": "doom_my_way_home --env doom:my_way_home?actions=multi_discrete --steps 10000000 --pool.num-envs 64"
    " --pool.workers 4 --rollout-steps 128 --appo.batch 8192 --ppo.epochs 4 --ppo.minibatches 8 --ppo.trace-decay 0.95 --optimizer.learning-rate 3e-4",
}
"""An hour each on two cores: only where they are asked for."""
SYSTEMS = ("ddppo", "ver", "appo")
PLOT = Path("efficiency.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which part of it to run."""

    tasks: tuple[str, ...] = tuple(TASKS)
    """Of the usual ones, and of the long ones: Doom my_way_home."""
    seeds: tuple[int, ...] = (1, 2, 3)
    seconds: float | None = None
    """An end of each run, beside its number of steps."""
    device: Literal["cpu", "cuda"] = "cpu"
    at_once: int | None = None
    """Runs at a time, which share all cores; by default one for every pair of cores, which it has for itself."""


def run(quick: bool) -> dict[str, Any]:
    return measure(Plan(tasks=("CartPole",), seeds=(1, 2)) if quick else Plan(), context(), quick)


def measure(plan: Plan, facts: dict[str, Any], quick: bool = False) -> dict[str, Any]:
    print_context(facts)
    commands = {"CartPole": "cartpole --steps 10000 --pool.num-envs 8"} if quick else TASKS | LONG_TASKS
    limit = [] if plan.seconds is None else ["--seconds", str(plan.seconds)]
    jobs: dict[Job, list[str]] = {
        (task, system, seed): [
            *commands[task].split(),
            *("--system", system, "--seed", str(seed), "--pool.kind", "process"),
            *limit,
        ]
        for task in plan.tasks
        for seed in plan.seeds
        for system in SYSTEMS
    }
    found = train_all(jobs, device=plan.device, at_once=plan.at_once)
    curves: Curves = {
        (task, system): [found[task, system, seed] for seed in plan.seeds] for task in plan.tasks for system in SYSTEMS
    }
    seeds = f"mean of {len(plan.seeds)} seeds and 95 % interval"
    shared = {
        task: int(min(found[task, system, seed].steps[-1] for system in SYSTEMS for seed in plan.seeds))
        for task in plan.tasks
    }
    print_table(
        f"return over the steps that all have made, {seeds}",
        ["task", "steps", *SYSTEMS],
        [
            [task, f"{end:,}", *(interval([over_steps(c, end) for c in curves[task, system]]) for system in SYSTEMS)]
            for task, end in shared.items()
        ],
    )
    print_table(
        f"return at the end, {seeds}",
        ["task", *SYSTEMS],
        [[task, *(interval([final(c) for c in curves[task, system]]) for system in SYSTEMS)] for task in plan.tasks],
    )
    if not quick:
        plot(curves, list(plan.tasks), list(SYSTEMS), PLOT)
        print(f"\nplot: {PLOT}")
    returns = {f"{task}, {system}": [final(c) for c in of_seeds] for (task, system), of_seeds in curves.items()}
    return {"context": facts, "final_returns": returns}


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__), context("python -m benchmarks.efficiency"))
