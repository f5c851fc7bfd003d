"""Sample efficiency: return over steps and over time of DD-PPO, VER and APPO on the same tasks, three seeds each.

Environments run in worker processes, so that VER and APPO take them as they come. Returns are means of the latest 100 episodes; the
table has the mean of the reports of the last tenth of a run, over seeds, with a 95 % interval (Student's t).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.learning import Curves, final, interval, plot, train
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
    curves: Curves = {}
    for task, options in tasks.items():
        for seed in seeds:
            for system in SYSTEMS:
                arguments = [*options.split(), "--system", system, "--seed", str(seed)]
                curve = train([*arguments, "--device", "cpu", "--pool.kind", "process"])
                curves.setdefault((task, system), []).append(curve)
                last = curves[task, system][-1].returns[-1]
                print(f"  {task}, {system}, seed {seed}: {last:.2f}", flush=True)
    print_table(
        f"return at the end, mean of {len(seeds)} seeds and 95 % interval",
        ["task", *SYSTEMS],
        [[task, *(interval([final(c) for c in curves[task, system]]) for system in SYSTEMS)] for task in tasks],
    )
    if not quick:
        plot(curves, list(tasks), list(SYSTEMS), PLOT)
        print(f"\nplot: {PLOT}")
    returns = {f"{task}, {system}": [final(c) for c in found] for (task, system), found in curves.items()}
    return {"context": facts, "final_returns": returns}
