"""Learns the skills of rearrangement, and plays each one in houses that training has not seen.

Every skill trains in a process of its own, with its recipe for a GPU if there is one. Start NVIDIA's MPS before several
runs share a GPU (`nvidia-cuda-mps-control -d`). `--seconds` is the total time of training: calling it again with the
same `--folder` reads the runs that are finished, and with a larger `--seconds` continues them.

The folder has a run of each skill, such as FOLDER/pick, for `benchmarks.rearrangement_plans` and
`benchmarks.emergent_navigation`. `python -m benchmarks.rearrangement_skills --help` lists the options.
"""

from __future__ import annotations

import json
import shlex
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from paceline.recipes.rearrangement import ABOUT

from .kept_runs import Ended, Work, measurements, shown_seconds, train_kept
from .learning import Job
from .report import Result, command_line, context, make_result, print_context, print_table

SUCCESS = "episode_success"
LAST = 20
"""Success in training is the mean of the last twentieth of the reports."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    skills: tuple[str, ...] = tuple(ABOUT)
    seconds: float = 600.0
    """Total time of training of each skill."""
    episodes: int = 512
    """Of each skill at its end."""
    split: str = "val"
    """Of the houses: val and test are not seen in training."""
    options: str = ""
    """Further options of `paceline train`, such as --options="--pool.num-envs 4096"."""
    at_once: int = 8
    """Runs at the same time."""
    folder: Path | None = None
    """Keeps the runs. None: they are deleted at the end."""


def run(quick: bool) -> Result:
    return measure(quick_plan() if quick else Plan(), context())


def quick_plan() -> Plan:
    tiny = "--env rearrange:pick?resolution=16&scenes=2 --pool.num-envs 4 --ppo.minibatches 2"
    return Plan(skills=("pick",), seconds=2.0, episodes=2, options=f"{tiny} --device cpu")


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    if plan.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return measure(replace(plan, folder=Path(folder)), facts)
    print_context(facts)
    runs = train_kept(works(plan), plan.folder, plan.seconds, plan.at_once, plan.episodes)
    table = print_table(
        f"Skills after {shown_seconds(runs)}: success in unseen houses of {plan.split}, {plan.episodes} episodes, most "
        "likely actions (95 % interval)",
        ["skill", "million steps", "success in training, end", f"success in {plan.split}", "collisions an episode"],
        [row(str(skill), ended, plan.folder) for (skill,), ended in runs.items()],
        name="skills",
        note="Success in training is the mean of the last twentieth of the reports, with sampled actions.",
    )
    note = f"One seed each, {plan.at_once} runs at the same time."
    return make_result("rearrangement_skills", facts, [table], measurements=measurements(runs), note=note)


def works(plan: Plan) -> dict[Job, Work]:
    suffix = "-gpu" if torch.cuda.is_available() else ""
    return {
        (skill,): Work(
            [f"rearrange-{skill.replace('_', '-')}{suffix}", *shlex.split(plan.options)],
            SUCCESS,
            ("--split", plan.split),
            "success",
        )
        for skill in plan.skills
    }


def row(skill: str, ended: Ended | None, folder: Path) -> list[str]:
    if ended is None:
        return [skill, "", "", "", ""]
    found = ended.result.returns
    low, high = found["success_ci95"]
    return [
        skill,
        f"{ended.result.steps / 1e6:.1f}",
        success_in_training(folder / skill),
        f"{found['success']:.2f} ({low:.2f} to {high:.2f})",
        f"{found['collisions']:.0f}",
    ]


def success_in_training(run: Path) -> str:
    """Empty if no episode has ended."""
    reports = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    known = [report[SUCCESS] for report in reports if report.get(SUCCESS) is not None]
    last = known[-max(1, len(known) // LAST) :]
    return f"{sum(last) / len(last):.2f}" if last else ""


if __name__ == "__main__":
    command_line("rearrangement_skills", Plan, measure, __doc__)
