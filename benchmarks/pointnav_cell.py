"""One agent of `benchmarks.pointnav`, trained for some iterations: `python -m benchmarks.pointnav_cell NAME`."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from paceline import recipes
from paceline.config import Config
from paceline.session import train

from .marks import note_reports

ITERATIONS = 80
"""Of a training run. The first half compiles and records, the second half is measured."""


def _on_gpu(recipe: str = "pointnav", **changes: Any) -> Callable[[], Config]:
    return lambda: dataclasses.replace(recipes.find(recipe), **changes)


def _resnet50() -> Config:
    base = recipes.find("pointnav")
    return dataclasses.replace(
        base,
        env="pointnav:full?resolution=128&depth_dtype=float16",
        policy=dataclasses.replace(base.policy, encoder="resnet50"),
        pool=dataclasses.replace(base.pool, num_envs=512),
    )


GPU_AGENTS: dict[str, Callable[[], Config]] = {
    "ResNet18, depth 64x64": _on_gpu(),
    "ResNet18, RGB 64x64": _on_gpu(env="pointnav:full?resolution=64&sensors=rgb"),
    "blind": _on_gpu("pointnav-blind", env="pointnav:full?sensors=blind"),
    "ResNet50, depth 128x128": _resnet50,
}
CPU_AGENTS: dict[str, Callable[[], Config]] = {"pointnav-small": lambda: recipes.find("pointnav-small")}


def measure(config: Config) -> dict[str, float]:
    """Steps per second of the second half of the iterations."""
    forget_memory()
    marks = note_reports()
    steps = ITERATIONS * config.rollout_steps * config.pool.num_envs
    with tempfile.TemporaryDirectory() as folder:
        train(dataclasses.replace(config, steps=steps, seconds=None), Path(folder))
    (begin, first), (end, last) = marks[len(marks) // 2], marks[-1]
    return {"steps_per_second": (last - first) / (end - begin), "gib": reserved_gib()}


def forget_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def reserved_gib() -> float:
    return torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else 0.0


def main() -> None:
    print("RESULT " + json.dumps(measure((GPU_AGENTS | CPU_AGENTS)[sys.argv[1]]())), flush=True)


if __name__ == "__main__":
    main()
