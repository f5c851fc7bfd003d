"""The hand without each of D4PG's parts, as in the paper's figure 3: priorities on and off, with N = 1 and N = 5.

The paper's settings are for days of training. These runs have the networks and learning rates of the recipes `dmc_*`,
which learn in minutes. A run has a process that steps the environments, and one that learns.

`--seconds` is the total time of training. Calling it again with the same `--folder` reads the runs that are finished,
and with a larger `--seconds` continues them. `python -m benchmarks.control_ablation --help` lists the options.
"""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paceline.pool.config import available_core_ids

from .d4pg_ablation import KINDS
from .kept_runs import Ended, Work, curves_of, measurements, shown_mean, shown_returns, shown_seconds, train_kept
from .learning import CORES_EACH, Job
from .panels import Panels, draw_panels
from .report import Result, command_line, context, make_result, print_context, print_table

EXTRA = "mujoco"
"""What `paceline bench` checks before it begins."""
Learner = Literal["D4PG", "D3PG"]
PRIORITIES = {"prioritized": "--replay.prioritized", "not prioritized": "--replay.no-prioritized"}
SMALL = [
    *("--pool.num-envs", "16", "--pool.kind", "process", "--d4pg.batch", "256"),
    *("--control.actor-hidden", "256", "256", "--control.critic-hidden", "256", "256"),
    *("--d4pg.actor-rate", "3e-4", "--d4pg.critic-rate", "3e-4"),
    *("--d4pg.target-period", "1", "--d4pg.target-share", "0.005"),
]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    tasks: tuple[str, ...] = ("catch",)
    """Tasks of the hand."""
    learners: tuple[Learner, ...] = ("D4PG",)
    """D3PG is D4PG with a critic that predicts one number."""
    steps: tuple[int, ...] = (1, 5)
    """Values of N."""
    seeds: tuple[int, ...] = (1, 2)
    seconds: float = 500.0
    """Total time of training of each run."""
    episodes: int = 20
    """Episodes of each run at its end."""
    device: str = "auto"
    at_once: int | None = None
    """Runs at the same time. None: one for every two cores."""
    workers: int = 1
    """Processes that step the environments of a run."""
    further: str = ""
    """Further options of `paceline train`, such as --further="--limiter.samples-per-insert 64"."""
    folder: Path | None = None
    """Keeps the runs. None: they are deleted at the end."""
    picture: Path | None = None
    """Also draw the learning curves to this file."""


def run(quick: bool) -> Result:
    small = "--limiter.minimum 200 --d4pg.batch 32"
    quick_plan = Plan(steps=(5,), seeds=(1,), seconds=4.0, episodes=2, device="cpu", at_once=2, further=small)
    return measure(quick_plan if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    if plan.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return measure(replace(plan, folder=Path(folder)), facts)
    print_context(facts)
    at_once = plan.at_once or max(1, len(available_core_ids()) // CORES_EACH)
    runs = train_kept(works(plan), plan.folder, plan.seconds, at_once, plan.episodes)
    table = print_table(
        f"Return without noise after {shown_seconds(runs)}, {plan.episodes} episodes of each run",
        ["task", "learner", "N", *PRIORITIES, *(f"{name}, steps" for name in PRIORITIES)],
        [
            row(task, learner, steps, plan, runs)
            for task in plan.tasks
            for learner in plan.learners
            for steps in plan.steps
        ],
        name="returns",
    )
    if plan.picture is not None:
        draw_panels(panels(plan, runs), plan.picture, columns=len(plan.tasks) if len(plan.tasks) > 1 else 2)
        print(f"\nplot: {plan.picture}")
    note = f"{at_once} runs at the same time, {len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}."
    return make_result("control_ablation", facts, [table], measurements=measurements(runs), note=note)


def works(plan: Plan) -> dict[Job, Work]:
    """All runs, seed by seed."""
    usual = ["--device", plan.device, "--pool.workers", str(plan.workers), *shlex.split(plan.further)]
    return {
        (task, learner, steps, priorities, seed): Work(
            [
                *(f"hand_{task}", *SMALL, "--control.value.kind", KINDS[learner], option),
                *("--d4pg.steps", str(steps), "--seed", str(seed), *usual),
            ],
            "evaluation_return",
        )
        for seed in plan.seeds
        for task in plan.tasks
        for learner in plan.learners
        for steps in plan.steps
        for priorities, option in PRIORITIES.items()
    }


def row(task: str, learner: str, steps: int, plan: Plan, runs: dict[Job, Ended | None]) -> list[str]:
    found = [[runs[task, learner, steps, priorities, seed] for seed in plan.seeds] for priorities in PRIORITIES]
    lengths = [shown_mean([one.result.steps for one in seeds if one is not None]) for seeds in found]
    return [f"`hand:{task}`", learner, str(steps), *map(shown_returns, found), *lengths]


def panels(plan: Plan, runs: dict[Job, Ended | None]) -> Panels:
    """The learning curves: a row for every N and a column for every task, as in the paper."""
    return {
        f"{task}, N = {steps}": {
            f"{learner}, {priorities}": curves_of([runs[task, learner, steps, priorities, seed] for seed in plan.seeds])
            for learner in plan.learners
            for priorities in PRIORITIES
        }
        for steps in plan.steps
        for task in plan.tasks
    }


if __name__ == "__main__":
    command_line("control_ablation", Plan, measure, __doc__)
