"""Speed of every navigation task with every camera: in training, and of the simulator alone.

The agents of a wave start together, compile and train some rounds. Then they wait, and each is measured while the
others sleep. The simulator alone acts at random, as in `benchmarks.pointnav`. It is measured for every pair of a task
and a camera; agents are trained on every task with the first camera, and on the first task with every camera.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from paceline.distributed.launch import end_with_parent

from .cells import end_group, last_line
from .pointnav import simulate
from .report import Result, command_line, context, make_result, print_context, print_table, progress

TASKS = ("pointnav", "flee", "explore", "objectnav", "imagenav")
DEPTH, RGB, RGBD, LARGE = "depth 64x64", "RGB 64x64", "RGB-D 64x64", "RGB-D 128x128, SE-ResNeXt50"
CAMERAS = {
    DEPTH: "resolution=64&sensors=depth&depth_dtype=float16",
    RGB: "resolution=64&sensors=rgb",
    RGBD: "resolution=64&sensors=depth%2Brgb&depth_dtype=float16",
    LARGE: "resolution=128&sensors=depth%2Brgb&depth_dtype=float16",
}
LARGE_STREAMS = 512
POLL_SECONDS = 0.05


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    tasks: tuple[str, ...] = TASKS
    cameras: tuple[str, ...] = tuple(CAMERAS)
    all_pairs: bool = False
    """Train every task with every camera."""
    tier: str = "full"
    streams: int = 4096
    """Environments of an agent; 512 with the large network."""
    wave: int = 8
    """Agents that start together. Their networks and rollouts share the memory of the GPU."""
    warm_up: int = 4
    """Rounds of an agent before it is measured. It compiles and records in the first two."""
    seconds: float = 6.0
    """Time of each measurement."""
    start_seconds: float = 400.0
    """Time for the agents of a wave to get ready. Those that are not ready then have no figure: they would disturb the
    others."""


class Cell:
    """An agent in its own process. It gets ready, waits for its turn, and prints its speed."""

    def __init__(self, options: dict[str, Any], folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._output = (folder / "output").open("w+")
        command = [sys.executable, "-m", f"{__package__}.navigation_speed_cell", json.dumps(options), str(folder)]
        self.process = subprocess.Popen(
            command,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(os.environ),
            preexec_fn=end_with_parent,  # it may wait for a turn that never comes
        )

    @property
    def is_ready(self) -> bool:
        """Whether it waits for its turn, or has failed."""
        return (self._folder / "ready").exists() or self.process.poll() is not None

    def measure(self, seconds: float) -> dict[str, float] | None:
        """Its result; None if it was not ready, or failed."""
        (self._folder / "go").touch()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=60.0 + 10 * seconds)
        end_group(self.process)
        text = (self._folder / "output").read_text()
        found = [line for line in text.splitlines() if line.startswith("RESULT ")]
        if not found:
            print(f"no figure: {last_line(text)}", flush=True)
        return json.loads(found[0].removeprefix("RESULT ")) if found else None


def run(quick: bool) -> Result:
    small = Plan(tasks=("pointnav", "flee"), cameras=(DEPTH,), tier="small", streams=16, warm_up=2, seconds=1.0)
    return measure(small if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    pairs = [(task, camera) for camera in plan.cameras for task in plan.tasks]
    learned = pairs if plan.all_pairs else [pair for pair in pairs if plan.tasks[0] in pair or plan.cameras[0] in pair]
    trained: dict[tuple[str, str], dict[str, float] | None] = dict.fromkeys(pairs)
    for first in range(0, len(learned), plan.wave):
        trained |= train_wave(learned[first : first + plan.wave], plan)
    alone = {}
    for task, camera in pairs:
        alone[task, camera] = simulate(env_id(plan, task, camera), streams_of(plan, camera), plan.seconds / 3)
    rows = [
        [task, camera, speed(trained[task, camera]), speed(alone[task, camera]), f"{relative(alone, task, camera):.2f}"]
        for task, camera in pairs
    ]
    table = print_table(
        f"Steps per second, {plan.tier} scenes",
        ["task", "camera", "in training", "simulator alone", "simulator alone, relative to the first task"],
        rows,
        name="speed",
    )
    measurements = [
        {"task": task, "camera": camera, "trained": trained[task, camera], "alone": alone[task, camera]}
        for task, camera in pairs
    ]
    return make_result("navigation_speed", facts, [table], measurements=measurements)


def train_wave(pairs: list[tuple[str, str]], plan: Plan) -> dict[tuple[str, str], dict[str, float] | None]:
    """Start the agents together, wait until all are ready, and measure one after the other."""
    cells: dict[tuple[str, str], Cell] = {}
    with tempfile.TemporaryDirectory() as folder:
        try:
            for number, (task, camera) in enumerate(pairs):
                cells[task, camera] = Cell(cell_options(plan, task, camera), Path(folder) / str(number))
            deadline = time.monotonic() + plan.start_seconds
            while not all(cell.is_ready for cell in cells.values()) and time.monotonic() < deadline:
                progress(f"{sum(cell.is_ready for cell in cells.values())} of {len(cells)} agents are ready")
                time.sleep(POLL_SECONDS)
            progress("")
            for cell in cells.values():
                if not cell.is_ready:
                    end_group(cell.process)
            found = {}
            for pair, cell in cells.items():
                found[pair] = cell.measure(plan.seconds)
                print(f"  {', '.join(pair)}: {speed(found[pair])}", flush=True)
            return found
        finally:
            for cell in cells.values():
                end_group(cell.process)


def cell_options(plan: Plan, task: str, camera: str) -> dict[str, Any]:
    return {
        "env": env_id(plan, task, camera),
        "streams": streams_of(plan, camera),
        "encoder": "se_resnext50" if camera == LARGE else None,
        "recipe": "pointnav" if torch.cuda.is_available() else "pointnav-small",
        "warm_up": plan.warm_up,
        "seconds": plan.seconds,
    }


def env_id(plan: Plan, task: str, camera: str) -> str:
    return f"{task}:{plan.tier}?{CAMERAS[camera]}"


def streams_of(plan: Plan, camera: str) -> int:
    return min(plan.streams, LARGE_STREAMS) if camera == LARGE else plan.streams


def speed(found: dict[str, float] | None) -> str:
    return "" if found is None else f"{found['steps_per_second']:,.0f}"


def relative(alone: dict[tuple[str, str], dict[str, float]], task: str, camera: str) -> float:
    first = next(rate for (_, other), rate in alone.items() if other == camera)
    return alone[task, camera]["steps_per_second"] / first["steps_per_second"]


if __name__ == "__main__":
    command_line("navigation_speed", Plan, measure, __doc__)
