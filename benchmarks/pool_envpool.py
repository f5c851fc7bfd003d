"""The `envpool` backend and EnvPool itself, with equal batches.

Both are open at once and are measured alternately. EnvPool resets an environment on the step after an episode's end
and returns that artificial step as if it were real. Only real transitions are counted, for both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paceline.pool import PoolConfig, make_pool
from paceline.pool.random_actions import TURNS, sample_turns

from .report import Table, print_table, progress

WORKLOADS = {"CartPole-v1": (8, 64), "HalfCheetah-v5": (8, 32), "Breakout-v5": (8, 32)}


def measure_envpool(quick: bool) -> tuple[Table, dict[str, Any]]:
    rounds, seconds = (2, 0.3) if quick else (9, 0.7)
    workloads = {"CartPole-v1": (64,)} if quick else WORKLOADS
    results = {}
    for task, sizes in workloads.items():
        for num_envs in sizes:
            progress(f"envpool:{task}, {num_envs} environments")
            results[f"{task} / {num_envs}"] = compare(task, num_envs, rounds, seconds)
    progress("")
    table = print_table(
        "EnvPool, lock-step, random actions: real transitions per second (medians)",
        ["task / environments", "EnvPool itself", "envpool backend", "ratio"],
        [[name, f"{row['raw']:,.0f}", f"{row['ours']:,.0f}", f"{row['ratio']:.3f}"] for name, row in results.items()],
        name="envpool",
    )
    return table, results


def compare(task: str, num_envs: int, rounds: int, seconds: float) -> dict[str, float]:
    import envpool

    raw = envpool.make(task, env_type="gymnasium", num_envs=num_envs, seed=0)
    pool = make_pool(f"envpool:{task}", PoolConfig(num_envs=num_envs))
    actions = sample_turns(pool.spec.actions[0].space, num_envs)
    raw.reset()
    ended = np.zeros(num_envs, bool)
    turns = {"raw": 0, "ours": 0}

    def raw_turn() -> int:
        nonlocal ended
        real = num_envs - int(np.count_nonzero(ended))
        turns["raw"] = (turns["raw"] + 1) % TURNS
        _, _, terminated, truncated, _ = raw.step(actions[turns["raw"]])
        ended = terminated | truncated
        return real

    def our_turn() -> int:
        batch = pool.recv(min_slots=None)
        turns["ours"] = (turns["ours"] + 1) % TURNS
        pool.send(actions[turns["ours"]], batch.slots)
        return len(batch)

    samples: dict[str, list[float]] = {"raw": [], "ours": []}
    for turn in (raw_turn, our_turn):
        rate(turn, seconds)
    for _ in range(rounds):
        samples["raw"].append(rate(raw_turn, seconds))
        samples["ours"].append(rate(our_turn, seconds))
    raw.close()
    pool.close()
    medians = {name: statistics.median(values) for name, values in samples.items()}
    return {**medians, "ratio": medians["ours"] / medians["raw"]}


def rate(turn: Callable[[], int], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        count += turn()
    return count / (time.perf_counter() - start)
