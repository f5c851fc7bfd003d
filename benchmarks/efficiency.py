"""Sample efficiency: return over steps and over time of DD-PPO, VER and APPO on the same tasks, three seeds each.

Every run has two cores, and environments run in worker processes, so that VER and APPO take them as they come. Returns are means of the
latest 100 episodes; the table has the mean of the reports of the last tenth of a run, over seeds, with a 95 % interval (Student's t).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.learning import Job, final, interval, plot, train_all
from benchmarks.report import context, print_context, print_table

POINTNAV = "gym:paceline.envs.pointnav:paceline/PointNav-v0?tier=small&resolution=32&scenes=64"
TASKS = {
    "CartPole": "cartpole --steps 100000 --pool.num-envs 16",
    "Acrobot": "cartpole --env gym:Acrobot-v1 --steps 150000 --pool.num-envs 16",
    "PointNav, small": f"pointnav-small --env {POINTNAV} --seconds None --steps 60000 --pool.num-envs 16",
}
SYSTEMS = ("ddppo", "ver", "appo")
SEEDS = (1, 2, 3)
PLOT = Path("efficiency.png")


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    print_context(facts)
    tasks, seeds = ({"CartPole": "cartpole --steps 10000 --pool.num-envs 8"}, (1, 2)) if quick else (TASKS, SEEDS)
    jobs: dict[Job, list[str]] = {
        (task, system, seed): [*options.split(), "--system", system, "--seed", str(seed), "--pool.kind", "process"]
        for task, options in tasks.items()
        for seed in seeds
        for system in SYSTEMS
    }
    found = train_all(jobs)
    curves = {(task, system): [found[task, system, seed] for seed in seeds] for task in tasks for system in SYSTEMS}
    print_table(
        f"return at the end, mean of {len(seeds)} seeds and 95 % interval",
        ["task", *SYSTEMS],
        [[task, *(interval([final(c) for c in curves[task, system]]) for system in SYSTEMS)] for task in tasks],
    )
    if not quick:
        plot(curves, list(tasks), list(SYSTEMS), PLOT)
        print(f"\nplot: {PLOT}")
    returns = {f"{task}, {system}": [final(c) for c in of_seeds] for (task, system), of_seeds in curves.items()}
    return {"context": facts, "final_returns": returns}
