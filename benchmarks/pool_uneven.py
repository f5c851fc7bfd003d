"""Uneven simulators: the share of their steps that a pool delivers, with `recv` of any slots and of all slots."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from paceline.pool import PoolConfig, make_pool
from paceline.pool.random_actions import RandomActions

from .report import Table, print_table

REGIMES = {
    "log-normal": "synthetic:lognormal?mean=0.01&sigma=1",
    "slow minority": "synthetic:minority?mean=0.02&slow=10&fraction=0.125",
}
NUM_ENVS = 16


def measure_uneven(quick: bool) -> tuple[Table, dict[str, Any]]:
    seconds = 2.0 if quick else 10.0
    results: dict[str, Any] = {}
    for label, env in REGIMES.items():
        results[label] = {mode: share(env, mode == "recv(any)", seconds) for mode in ("recv(any)", "recv(all)")}
    table = print_table(
        f"Uneven, sleeping simulators ({NUM_ENVS} environments): "
        "steps delivered over the sum of the environments' own rates",
        ["regime", "recv(any)", "recv(all)"],
        [[label, f"{row['recv(any)']:.3f}", f"{row['recv(all)']:.3f}"] for label, row in results.items()],
        name="uneven",
    )
    return table, results


def share(env: str, any_ready: bool, seconds: float) -> float:
    """Delivered steps per second, divided by the sum of what each environment would deliver if it never waited."""
    with make_pool(env, PoolConfig(kind="auto", num_envs=NUM_ENVS)) as pool:
        actions = RandomActions(pool.spec)
        batch = pool.recv(min_slots=None)
        pool.send(actions.next(batch.slots), batch.slots)
        steps, spent = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS)
        start = time.perf_counter()
        while time.perf_counter() - start < seconds:
            batch = pool.recv(min_slots=1 if any_ready else None)
            steps[batch.slots] += 1
            spent[batch.slots] += batch.step_seconds
            pool.send(actions.next(batch.slots), batch.slots)
        elapsed = time.perf_counter() - start
    own_rates = (steps / spent).sum()
    return float(steps.sum() / elapsed / own_rates)
