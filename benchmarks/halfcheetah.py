"""PPO on HalfCheetah-v5: the `halfcheetah` recipe, PPO in the style of CleanRL, and Stable-Baselines3.

Each runs 1 million steps with three seeds.

The peers have their own defaults. Every run has one thread, and one run per core is active at a time. A peer that is
not installed is left out. Returns are means of the last 100 episodes.
"""

from __future__ import annotations

import importlib.util
import json
import re
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paceline.pool.config import available_core_ids

from .cells import CellError, last_line
from .report import Result, context, make_result, print_context, print_table

EXTRA = "mujoco"
"""What `paceline bench` checks before it begins."""
SEEDS = (1, 2, 3)
PEERS = {
    "PPO in the style of CleanRL": f"{__package__}.peers.ppo_continuous",
    "Stable-Baselines3": f"{__package__}.peers.sb3_ppo",
}
PLOT = Path("halfcheetah.png")

Curve = list[tuple[int, float]]
"""Steps and mean returns, in order."""


def run(quick: bool) -> Result:
    facts = context()
    print_context(facts)
    steps, seeds = (20_000, SEEDS[:1]) if quick else (1_000_000, SEEDS)
    systems = ["paceline"] + [name for name in PEERS if name != "Stable-Baselines3" or _has_sb3()]
    jobs = [(system, seed) for system in systems for seed in seeds]
    with ThreadPoolExecutor(len(available_core_ids())) as threads:
        curves = dict(zip(jobs, threads.map(lambda job: measure(job[0], job[1], steps), jobs), strict=True))
    last = {system: [curves[system, seed][-1][1] for seed in seeds] for system in systems}
    table = print_table(
        f"HalfCheetah-v5: mean return of the last 100 episodes after {steps:,} steps",
        ["system", "mean", *(f"seed {seed}" for seed in seeds)],
        [[system, f"{statistics.mean(last[system]):,.0f}", *(f"{r:,.0f}" for r in last[system])] for system in systems],
        name="returns",
    )
    if not quick:
        plot(curves, systems, seeds)
        print(f"\nplot: {PLOT}")
    named = {f"{system}, seed {seed}": curve for (system, seed), curve in curves.items()}
    return make_result("halfcheetah", facts, [table], measurements=named)


def _has_sb3() -> bool:
    return importlib.util.find_spec("stable_baselines3") is not None


def measure(system: str, seed: int, steps: int) -> Curve:
    with tempfile.TemporaryDirectory() as folder:
        if system == "paceline":
            options = f"--device cpu --pool.kind serial --threads 1 --steps {steps} --seed {seed}"
            command = [
                sys.executable,
                "-m",
                "paceline",
                "train",
                "halfcheetah",
                *options.split(),
                "--run-dir",
                folder,
            ]
        else:
            command = [sys.executable, "-m", PEERS[system], str(seed), "HalfCheetah-v5", str(steps)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise CellError(f"{last_line(done.stderr)}\n{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        print(f"{system}, seed {seed}: done", flush=True)
        if system == "paceline":
            lines = (Path(folder) / "metrics.jsonl").read_text().splitlines()
            return [(r["step"], r["episode_return"]) for r in map(json.loads, lines) if "episode_return" in r]
    reports = (json.loads(found) for found in re.findall(r"^(?:PROGRESS|RESULT) (.*)$", done.stdout, re.MULTILINE))
    return [(report["steps"], report["return"]) for report in reports]


def plot(curves: dict[tuple[str, int], Curve], systems: list[str], seeds: tuple[int, ...]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    for index, system in enumerate(systems):
        for seed in seeds:
            steps, returns = zip(*curves[system, seed], strict=True)
            axis.plot(steps, returns, color=f"C{index}", label=system if seed == seeds[0] else None)
    axis.set(xlabel="steps", ylabel="mean return of 100 episodes", title="HalfCheetah-v5, three seeds")
    axis.grid(alpha=0.3)
    axis.legend()
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)
