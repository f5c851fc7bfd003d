"""Sample efficiency: return over steps and over time of DD-PPO, VER and APPO on the same tasks, three seeds each.

Environments run in worker processes, so that VER and APPO take them as they come. Returns are means of the latest 100 episodes; the
table has the mean of the reports of the last tenth of a run, over seeds, with a 95 % interval (Student's t).
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import context, print_context, print_table

POINTNAV = "gym:paceline.envs.pointnav:paceline/PointNav-v0?tier=small&resolution=32&scenes=64"
TASKS = {
    "CartPole": "cartpole --steps 100000 --pool.num-envs 16",
    "Acrobot": "cartpole --env gym:Acrobot-v1 --steps 150000 --pool.num-envs 16",
    "PointNav, small": f"pointnav-small --env {POINTNAV} --seconds None --steps 60000 --pool.num-envs 16",
}
SYSTEMS = ("ddppo", "ver", "appo")
SEEDS = (1, 2, 3)
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""97.5 % quantiles of Student's t for so many seeds."""
PLOT = Path("efficiency.png")
POINTS = 100


class Curve(NamedTuple):
    steps: np.ndarray
    seconds: np.ndarray
    returns: np.ndarray


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    print_context(facts)
    tasks, seeds = ({"CartPole": "cartpole --steps 10000 --pool.num-envs 8"}, (1, 2)) if quick else (TASKS, SEEDS)
    curves: dict[tuple[str, str], list[Curve]] = {}
    for task, options in tasks.items():
        for seed in seeds:
            for system in SYSTEMS:
                curves.setdefault((task, system), []).append(train(options.split(), system, seed))
                last = curves[task, system][-1].returns[-1]
                print(f"  {task}, {system}, seed {seed}: {last:.2f}", flush=True)
    print_table(
        f"return at the end, mean of {len(seeds)} seeds and 95 % interval",
        ["task", *SYSTEMS],
        [[task, *(interval([final(c) for c in curves[task, system]]) for system in SYSTEMS)] for task in tasks],
    )
    if not quick:
        plot(curves, list(tasks))
        print(f"\nplot: {PLOT}")
    returns = {f"{task}, {system}": [final(c) for c in found] for (task, system), found in curves.items()}
    return {"context": facts, "final_returns": returns}


def train(options: list[str], system: str, seed: int) -> Curve:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "paceline.cli", "train", *options, "--system", system, "--seed", str(seed)]
        command += ["--device", "cpu", "--pool.kind", "process", "--run-dir", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        reports = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    kept = [(r["step"], r["seconds"], r["episode_return"]) for r in reports if r["episode_return"] is not None]
    return Curve(*map(np.array, zip(*kept, strict=True)))


def final(curve: Curve) -> float:
    """The mean over the last tenth of a run."""
    return float(curve.returns[curve.steps >= 0.9 * curve.steps[-1]].mean())


def interval(values: list[float]) -> str:
    half = STUDENT[len(values)] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):.2f} ± {half:.2f}"


def plot(curves: dict[tuple[str, str], list[Curve]], tasks: list[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, len(tasks), figsize=(11, 6.4), squeeze=False)
    for task, over_steps, over_time in zip(tasks, *axes, strict=True):
        for axis, along in ((over_steps, "steps"), (over_time, "seconds")):
            for system in SYSTEMS:
                draw(axis, system, [(getattr(curve, along), curve.returns) for curve in curves[task, system]])
            axis.set(title=task, xlabel=f"agent {along}" if along == "steps" else along)
            axis.grid(alpha=0.3)
    for row in axes:
        row[0].set_ylabel("return")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)


def draw(axis: Any, label: str, seeds: list[tuple[np.ndarray, np.ndarray]]) -> None:
    """The mean over seeds where all have something to say, and its 95 % interval."""
    at = np.linspace(max(x[0] for x, _ in seeds), min(x[-1] for x, _ in seeds), POINTS)
    values = np.stack([np.interp(at, x, returns) for x, returns in seeds])
    mean = values.mean(0)
    half = STUDENT[len(seeds)] * values.std(0, ddof=1) / math.sqrt(len(seeds))
    (line,) = axis.plot(at, mean, label=label)
    axis.fill_between(at, mean - half, mean + half, color=line.get_color(), alpha=0.2, linewidth=0)
