"""Speed of the rearrangement simulator: alone, by resolution and by task, and in training.

Actions are random. The base moves, and the hand holds on to what it touches half of the time. On a GPU the simulator's
step is a recorded CUDA graph, as in training.
"""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from paceline import recipes
from paceline.session import train

from .marks import note_reports
from .pointnav import simulate
from .pointnav_cell import forget_memory, reserved_gib
from .report import Result, command_line, context, make_result, print_context, print_table, progress

TASKS = ("pick", "place", "navigate", "open_fridge", "close_fridge", "open_drawer", "close_drawer", "tidy_house")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    tasks: tuple[str, ...] = TASKS
    tier: str = "full"
    scenes: int = 64
    resolutions: tuple[int, ...] = (64, 128)
    """Of `pick`. The other tasks are measured with the first one."""
    streams: tuple[int, ...] = (4096, 16384)
    """Of `pick` with the first resolution. All others are measured with the first number."""
    seconds: float = 3.0
    """Time of each measurement."""
    iterations: int = 40
    """Of the training run. The median of the second half is its speed. 0: no training."""
    recipe: str = "rearrange-pick-gpu"


def run(quick: bool) -> Result:
    small = Plan(
        tasks=("pick", "navigate"),
        tier="small",
        scenes=4,
        resolutions=(16,),
        streams=(8,),
        seconds=0.2,
        iterations=4,
        recipe="rearrange-pick",
    )
    cpu = dataclasses.replace(
        small, tasks=TASKS, scenes=16, resolutions=(32,), streams=(64,), seconds=2.0, iterations=10
    )
    return measure(small if quick else Plan() if torch.cuda.is_available() else cpu, context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    first, few = plan.resolutions[0], plan.streams[0]
    cells = [("pick", first, number) for number in plan.streams]
    cells += [("pick", resolution, few) for resolution in plan.resolutions[1:]]
    cells += [(task, first, few) for task in plan.tasks if task != "pick"]
    found = {cell: alone(plan, *cell) for cell in cells}
    rows = [
        [task, f"{resolution}x{resolution}", f"{streams:,}", f"{rate['steps_per_second']:,.0f}", f"{rate['gib']:.2f}"]
        for (task, resolution, streams), rate in found.items()
    ]
    columns = ["task", "depth image", "streams", "steps per second", "GPU memory, GiB"]
    tables = [print_table(f"Simulator alone, {plan.tier} houses", columns, rows, name="alone")]
    trained = training(plan) if plan.iterations else None
    if trained is not None:
        row = [f"{trained['steps_per_second']:,.0f}", f"{trained['gib']:.2f}"]
        columns = ["steps per second", "GPU memory, GiB"]
        tables.append(print_table(f"Training, recipe {plan.recipe}", columns, [row], name="training"))
    measurements = {"alone": [[*cell, rate] for cell, rate in found.items()], "training": trained}
    return make_result("rearrangement_speed", facts, tables, measurements=measurements)


def alone(plan: Plan, task: str, resolution: int, streams: int) -> dict[str, float]:
    dtype = "float16" if torch.cuda.is_available() else "float32"
    env = f"rearrange:{task}?tier={plan.tier}&scenes={plan.scenes}&resolution={resolution}&depth_dtype={dtype}"
    return simulate(env, streams, plan.seconds)


def training(plan: Plan) -> dict[str, Any]:
    """Steps per second of the median iteration of the second half. Some iterations compile, and take much longer."""
    progress(f"training: {plan.recipe}")
    config = recipes.find(plan.recipe)
    forget_memory()
    marks = note_reports()
    steps = plan.iterations * config.rollout_steps * config.pool.num_envs
    with tempfile.TemporaryDirectory() as folder:
        train(dataclasses.replace(config, steps=steps, seconds=None), Path(folder))
    progress("")
    half = marks[len(marks) // 2 :]
    rounds = [(after - before) / (end - begin) for (begin, before), (end, after) in pairwise(half)]
    return {"steps_per_second": statistics.median(rounds), "rounds": rounds, "gib": reserved_gib()}


if __name__ == "__main__":
    command_line("rearrangement_speed", Plan, measure, __doc__)
