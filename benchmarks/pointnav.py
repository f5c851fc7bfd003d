"""The embedded PointGoal simulator: alone, by number of streams and of pixels, and in training.

On a GPU the simulator's step is a recorded CUDA graph, as in training. Actions are random moves, with one stop in
100. Memory is the maximum that PyTorch's allocator reserved. Training is `ddppo` with the agent of the `pointnav`
recipe (on a GPU) or the `pointnav-small` recipe (on a CPU). The warm-up does not count.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import torch
from gymnasium.spaces import Box, Space
from torch import Tensor

from paceline.pool import PoolConfig, make_pool

from .pointnav_cell import CPU_AGENTS, GPU_AGENTS, forget_memory, reserved_gib
from .report import Result, Table, context, make_result, print_context, print_table, progress

GPU_STREAMS, CPU_STREAMS = (256, 512, 1024, 2048, 4096, 8192), (16, 64, 256)
RESOLUTIONS = (32, 64, 128, 256)


def run(quick: bool) -> Result:
    facts = context()
    on_gpu = torch.cuda.is_available()
    print_context(facts)
    tier, base = ("full", 1024) if on_gpu else ("small", 64)
    seconds, side = 0.5 if quick else 2.0, 64 if on_gpu else 32
    streams = (base,) if quick else (GPU_STREAMS if on_gpu else CPU_STREAMS)
    by_streams = {n: simulate(depth(tier, side), n, seconds) for n in streams}
    resolutions = (64,) if quick else RESOLUTIONS
    by_pixels = {r: simulate(depth(tier, r), base, seconds) for r in resolutions}
    tables = [
        show("streams", f"Simulator alone, {tier}, depth {side}x{side}, by number of streams", "streams", by_streams),
        show("pixels", f"Simulator alone, {tier}, {base} streams, by resolution", "pixels per side", by_pixels),
    ]
    trained = {} if quick else end_to_end(on_gpu)
    if trained:
        tables.append(show("training", "Training", "agent", trained))
    measurements = {"by_streams": by_streams, "by_pixels": by_pixels, "training": trained}
    return make_result("pointnav", facts, tables, measurements=measurements)


def show(name: str, title: str, first: str, rows: dict[Any, dict[str, float]]) -> Table:
    return print_table(
        title,
        [first, "steps per second", "GPU memory, GiB"],
        [[str(key), f"{row['steps_per_second']:,.0f}", f"{row['gib']:.2f}"] for key, row in rows.items()],
        name=name,
    )


def depth(tier: str, resolution: int) -> str:
    return f"pointnav:{tier}?resolution={resolution}"


def random_actions(space: Space, streams: int, device: str) -> Tensor:
    """[64, streams, ...]: random numbers, or random moves with one stop in 100, as often as a trained agent stops."""
    if isinstance(space, Box):
        return torch.rand(64, streams, *space.shape, device=device) * 2 - 1
    stop = torch.rand(64, streams, device=device) < 0.01
    return torch.where(stop, 0, torch.randint(1, 4, (64, streams), device=device))


def simulate(env: str, streams: int, seconds: float) -> dict[str, float]:
    """Steps per second with random actions. The device is synchronised before and after."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    progress(f"simulator: {streams} streams, {env}")
    forget_memory()
    with make_pool(env, PoolConfig(num_envs=streams), device=device) as pool:
        actions = random_actions(pool.spec.action_space, streams, device)

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
    return {"steps_per_second": rate, "gib": reserved_gib()}


def end_to_end(on_gpu: bool) -> dict[str, dict[str, float]]:
    """Train every agent in its own process, so that they share neither compiled code nor memory."""
    results = {}
    for name in GPU_AGENTS if on_gpu else CPU_AGENTS:
        progress(f"training: {name}")
        command = [sys.executable, "-m", f"{__package__}.pointnav_cell", name]
        done = subprocess.run(command, capture_output=True, text=True)
        found = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not found:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
        results[name] = json.loads(found[0].removeprefix("RESULT "))
    progress("")
    return results


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
