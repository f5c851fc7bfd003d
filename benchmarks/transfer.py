"""Figure 5 of DD-PPO: five ways to begin Flee and Exploration, with or without an agent that was trained for PointNav.

    paceline train pointnav --run-dir runs/pointnav
    python -m benchmarks.supervised_encoder pointnav --run-dir runs/supervised
    python -m benchmarks.transfer --pointnav runs/pointnav --supervised runs/supervised

| setting | encoder | policy |
|---|---|---|
| scratch | trained | trained |
| supervised encoder | labels surfaces in single images; frozen | trained |
| PointNav encoder | PointNav's, frozen | trained |
| PointNav encoder and policy | PointNav's, frozen | PointNav's, trained further, with a new critic |
| neural controller | PointNav's, frozen | PointNav's, frozen; a planner gives it a goal at every step |

The supervised encoder stands in for the one that was trained on ImageNet. All runs are trained for the same time, at
the same time, and share the GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .learning import Job, final, interval, plot, train_all
from .report import Result, command_line, make_result, print_context, print_table

SCRATCH, SUPERVISED, ENCODER = "scratch", "supervised encoder", "PointNav encoder"
TUNED, CONTROLLER = "PointNav encoder and policy", "neural controller"
SETTINGS = (SCRATCH, SUPERVISED, ENCODER, TUNED, CONTROLLER)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    pointnav: Path
    """The run of the agent for PointNav."""
    supervised: Path
    """The run with the encoder that was trained by supervision."""
    tasks: tuple[str, ...] = ("flee", "explore")
    """Recipes."""
    settings: tuple[str, ...] = SETTINGS
    seeds: tuple[int, ...] = (1, 2, 3)
    num_envs: int = 512
    """Environments of a run."""
    minibatches: int = 4
    seconds: float = 400.0
    """Time of each run."""
    compile: bool = False
    """Whether encoders are compiled. It takes minutes if many runs start together."""
    device: str = "cuda"
    at_once: int | None = None
    """Runs at the same time. None: all."""
    keep: Path | None = None
    """Folder that keeps the reports of completed runs."""
    picture: Path = Path("transfer.png")


def options(setting: str, plan: Plan) -> list[str]:
    """The arguments of `paceline train` for a setting."""
    pointnav = ["--init-from", str(plan.pointnav)]
    return {
        SCRATCH: [],
        SUPERVISED: ["--init-from", str(plan.supervised), "--init", "encoder", "--freeze", "encoder"],
        ENCODER: [*pointnav, "--init", "encoder", "--freeze", "encoder"],
        TUNED: [*pointnav, "--init", "encoder+policy", "--freeze", "encoder"],
        CONTROLLER: [*pointnav, "--freeze", "encoder+policy", "--policy.planner.kind", "lstm"],
    }[setting]


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    usual = ["--pool.num-envs", str(plan.num_envs), "--ppo.minibatches", str(plan.minibatches)]
    usual += ["--seconds", str(plan.seconds), "--compute.compile" if plan.compile else "--compute.no-compile"]
    jobs: dict[Job, list[str]] = {
        (task, setting, seed): [task, *usual, "--seed", str(seed), *options(setting, plan)]
        for seed in plan.seeds
        for task in plan.tasks
        for setting in plan.settings
    }
    runs = train_all(jobs, device=plan.device, at_once=plan.at_once or len(jobs), keep=plan.keep)
    curves = {
        (task, setting): [runs[task, setting, seed] for seed in plan.seeds]
        for task in plan.tasks
        for setting in plan.settings
    }
    table = print_table(
        f"Return of the last tenth of a run of {plan.seconds:.0f} s, {len(plan.seeds)} seeds",
        ["setting", *(column for task in plan.tasks for column in (task, f"{task}, million steps"))],
        [
            [setting, *(cell for task in plan.tasks for cell in cells(curves[task, setting]))]
            for setting in plan.settings
        ],
        name="returns",
    )
    plot(curves, list(plan.tasks), list(plan.settings), plan.picture)
    print(f"\nplot: {plan.picture}")
    measurements = {
        f"{task}, {setting}": [{"return": final(curve), "steps": int(curve.steps[-1])} for curve in found]
        for (task, setting), found in curves.items()
    }
    return make_result("transfer", facts, [table], measurements=measurements)


def cells(curves: list[Any]) -> tuple[str, str]:
    """The return and the steps of a setting."""
    millions = [curve.steps[-1] / 1e6 for curve in curves]
    return interval([final(curve) for curve in curves]), interval(millions, ".1f")


if __name__ == "__main__":
    command_line("transfer", Plan, measure, __doc__)
