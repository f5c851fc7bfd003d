"""D4PG and PPO on the sixteen control tasks of D4PG's paper, for the same time each.

D4PG has the recipes `dmc_*`, and PPO is `ddppo` with the settings of our MuJoCo recipes. Every run is a process of its
own with about one core: one thread steps the environments, and all runs share the GPU. Start NVIDIA's MPS before many
runs share one (`nvidia-cuda-mps-control -d`). PPO's networks are small, so it learns on the CPU by default.

`--seconds` is the total time of training. Calling it again with the same `--folder` reads the runs that are finished,
and with a larger `--seconds` continues them. A run that fails leaves its cell empty.

D4PG's curves are of episodes without noise, PPO's of the episodes in training. The table has returns without noise of
whole episodes at the end. `python -m benchmarks.control_suite --help` lists the options.
"""

from __future__ import annotations

import shlex
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from paceline.pool.config import available_core_ids
from paceline.recipes.control import SUITE

from .kept_runs import Ended, Work, curves_of, measurements, shown_mean, shown_returns, shown_seconds, train_kept
from .learning import Job
from .panels import Panels, draw_panels
from .report import Result, command_line, context, make_result, print_context, print_table

EXTRA = "dmc"
"""What `paceline bench` checks before it begins."""
System = Literal["D4PG", "PPO"]
SYSTEMS: tuple[System, ...] = ("D4PG", "PPO")
KEYS = {"D4PG": "evaluation_return", "PPO": "episode_return"}
TASKS = tuple(task for task in SUITE if task != "walker-walk")
"""Those of the paper. It names cheetah's task walk, which the suite has as run."""
PPO = [
    *("--system", "ddppo", "--pool.num-envs", "16", "--rollout-steps", "128"),
    *("--policy.hidden", "64", "64", "--policy.critic", "separate", "--policy.normalize-obs"),
    *("--ppo.epochs", "10", "--ppo.minibatches", "32", "--ppo.entropy-coef", "0.0"),
    *("--ppo.normalize-advantage", "--ppo.normalize-returns", "--optimizer.learning-rate", "3e-4"),
]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    tasks: tuple[str, ...] = TASKS
    systems: tuple[System, ...] = SYSTEMS
    seeds: tuple[int, ...] = (1,)
    seconds: float = 540.0
    """Total time of training of each run."""
    episodes: int = 10
    """Episodes of each run at its end."""
    device: str = "auto"
    """Device of D4PG."""
    ppo_device: str = "cpu"
    """Device of PPO."""
    at_once: int | None = None
    """Runs at the same time. None: one for each core."""
    workers: int = 1
    """Threads (EnvPool) or processes (dm_control) that step the environments of a run."""
    d4pg: str = ""
    """Further options of `paceline train` for D4PG, such as --d4pg="--limiter.samples-per-insert 64"."""
    ppo: str = ""
    """Further options for PPO."""
    folder: Path | None = None
    """Keeps the runs. None: they are deleted at the end."""
    picture: Path | None = None
    """Also draw the learning curves to this file."""


def run(quick: bool) -> Result:
    return measure(quick_plan() if quick else Plan(), context())


def quick_plan() -> Plan:
    small = "--limiter.minimum 200 --d4pg.batch 32"
    return Plan(tasks=("cartpole-swingup",), seconds=4.0, episodes=2, device="cpu", d4pg=small)


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    if plan.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return measure(replace(plan, folder=Path(folder)), facts)
    print_context(facts)
    at_once = plan.at_once or len(available_core_ids())
    runs = train_kept(works(plan), plan.folder, plan.seconds, at_once, plan.episodes)
    table = print_table(
        f"Return without noise after {shown_seconds(runs)}, {plan.episodes} episodes of each run",
        ["task", *plan.systems, *(f"{system}, {what}" for system in plan.systems for what in ("steps", "updates"))],
        [row(task, plan, runs) for task in plan.tasks],
        name="returns",
    )
    if plan.picture is not None:
        draw_panels(panels(plan, runs), plan.picture)
        print(f"\nplot: {plan.picture}")
    note = f"{at_once} runs at the same time, {len(plan.seeds)} seed{'s' * (len(plan.seeds) > 1)}."
    return make_result("control_suite", facts, [table], measurements=measurements(runs), note=note)


def works(plan: Plan) -> dict[Job, Work]:
    """All runs, system by system."""
    return {
        (task, system, seed): Work(arguments(task, system, seed, plan), KEYS[system])
        for system in plan.systems
        for seed in plan.seeds
        for task in plan.tasks
    }


def arguments(task: str, system: System, seed: int, plan: Plan) -> list[str]:
    device, further = (plan.device, plan.d4pg) if system == "D4PG" else (plan.ppo_device, plan.ppo)
    own = [] if system == "D4PG" else PPO
    usual = ["--seed", str(seed), "--device", device, "--pool.workers", str(plan.workers)]
    return [f"dmc_{task.replace('-', '_')}", *own, *usual, *shlex.split(further)]


def row(task: str, plan: Plan, runs: dict[Job, Ended | None]) -> list[str]:
    of_systems = [[runs[task, system, seed] for seed in plan.seeds] for system in plan.systems]
    lengths = []
    for of_system in of_systems:
        results = [one.result for one in of_system if one is not None]
        lengths += [shown_mean([result.steps for result in results])]
        lengths += [shown_mean([result.gradient_steps for result in results])]
    return [task, *map(shown_returns, of_systems), *lengths]


def panels(plan: Plan, runs: dict[Job, Ended | None]) -> Panels:
    """The learning curves of every task."""
    return {
        task: {system: curves_of([runs[task, system, seed] for seed in plan.seeds]) for system in plan.systems}
        for task in plan.tasks
    }


if __name__ == "__main__":
    command_line("control_suite", Plan, measure, __doc__)
