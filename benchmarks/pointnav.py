"""The embedded PointGoal simulator: alone, by streams and by pixels, and with training end to end.

On a GPU the simulator's step is a recorded CUDA graph, as it is in training. Actions are random moves, with a stop once in 100. Memory is what
PyTorch's allocator held at most. End to end is `ddppo` with the `pointnav` recipe's agent (on a GPU) or the
`pointnav-small` recipe's (on a CPU), learning on, warm-up not counted.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import context, print_context, print_table, progress
from paceline import recipes
from paceline.config import Config
from paceline.pool import PoolConfig, make_pool
from paceline.run import Run, train

GPU_STREAMS, CPU_STREAMS = (256, 512, 1024, 2048, 4096, 8192), (16, 64, 256)
RESOLUTIONS = (32, 64, 128, 256)
ITERATIONS = 80
"""Of a training run; the first half compiles and records, the second is measured."""


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        facts["machine"] += f", {torch.cuda.get_device_name()}"
    print_context(facts)
    tier, base = ("full", 1024) if on_gpu else ("small", 64)
    seconds = 0.5 if quick else 2.0
    streams = (base,) if quick else (GPU_STREAMS if on_gpu else CPU_STREAMS)
    by_streams = {n: simulate(tier, n, 64 if on_gpu else 32, seconds) for n in streams}
    resolutions = (64,) if quick else RESOLUTIONS
    by_pixels = {r: simulate(tier, base, r, seconds) for r in resolutions}
    show(f"{tier}, depth {64 if on_gpu else 32}x{64 if on_gpu else 32}: by streams", "streams", by_streams)
    show(f"{tier}, {base} streams: by resolution", "pixels a side", by_pixels)
    trained = {} if quick else end_to_end(on_gpu)
    if trained:
        show("training, end to end", "agent", trained)
    return {"context": facts, "by_streams": by_streams, "by_pixels": by_pixels, "training": trained}


def show(title: str, first: str, rows: dict[Any, dict[str, float]]) -> None:
    print_table(
        title,
        [first, "steps per second", "GPU memory, GiB"],
        [[str(key), f"{row['steps_per_second']:,.0f}", f"{row['gib']:.2f}"] for key, row in rows.items()],
    )


def simulate(tier: str, streams: int, resolution: int, seconds: float, sensors: str = "depth") -> dict[str, float]:
    """Random actions; the device is waited for at both ends of the measurement."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    progress(f"simulator: {streams} streams, {resolution} pixels")
    _forget_memory()
    env = f"pointnav:{tier}?resolution={resolution}&sensors={sensors}"
    with make_pool(env, PoolConfig(num_envs=streams), device=device) as pool:
        # Moves, and a stop once in 100: about as often as agents that have learned.
        stop = torch.rand(64, streams, device=device) < 0.01
        actions = torch.where(stop, 0, torch.randint(1, 4, (64, streams), device=device))

        def turns(count: int) -> None:
            for turn in range(count):
                batch = pool.recv(min_slots=None)
                pool.send(actions[turn % 64], batch.slots)

        turns(10)
        _wait()
        start, count = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            turns(10)
            _wait()
            count += 10
        rate = count * streams / (time.perf_counter() - start)
    progress("")
    return {"steps_per_second": rate, "gib": _gib()}


def end_to_end(on_gpu: bool) -> dict[str, dict[str, float]]:
    if not on_gpu:
        return {"pointnav-small": training(recipes.find("pointnav-small"))}
    base = recipes.find("pointnav")
    agents = {
        "ResNet18, depth 64x64": base,
        "ResNet18, RGB 64x64": _with(base, env="pointnav:full?resolution=64&sensors=rgb"),
        "blind": _with(base, env="pointnav:full?sensors=blind"),
        "ResNet50, depth 128x128": _with(
            base,
            env="pointnav:full?resolution=128&depth_dtype=float16",
            policy=dataclasses.replace(base.policy, encoder="resnet50"),
            pool=dataclasses.replace(base.pool, num_envs=512),
        ),
    }
    return {name: training(config) for name, config in agents.items()}


def _with(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, **changes)


def training(config: Config) -> dict[str, float]:
    """Steps per second of the second half of the iterations: those before it compile and record."""
    progress(f"training: {config.env}, {config.policy.encoder}")
    _forget_memory()
    marks: list[tuple[float, int]] = []
    plain_report = Run.report

    def report(self: Run, *arguments: Any) -> None:
        plain_report(self, *arguments)
        marks.append((time.perf_counter(), self.step))

    Run.report = report  # type: ignore[method-assign,assignment]
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(_with(config, steps=ITERATIONS * config.rollout_steps * config.pool.num_envs), Path(folder))
    finally:
        Run.report = plain_report  # type: ignore[method-assign]
    progress("")
    (begin, first), (end, last) = marks[len(marks) // 2], marks[-1]
    return {"steps_per_second": (last - first) / (end - begin), "gib": _gib()}


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _forget_memory() -> None:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _gib() -> float:
    return torch.cuda.max_memory_reserved() / 2**30 if torch.cuda.is_available() else 0.0
