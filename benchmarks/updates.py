"""Updates per second of off-policy learners: ours, Stable-Baselines3's TD3, and DDPG in plain PyTorch.

Everybody draws batches of 256 from 100,000 transitions of HalfCheetah's sizes (17 numbers observed, 6 of an action) with
networks of two layers of 256 and ReLU, and moves its targets at every update. A TD3 update moves two critics, and every
second one the policy. Ours is measured as DDPG (a scalar critic, drawn uniformly) and as D4PG (51 atoms, by priority), on a
CPU also with compiled updates (`--compute.compile`), and in bfloat16 (`--compute.precision`) where that is fast; on a GPU
its updates are recorded, as in a run.
Each in a process of its own with PyTorch's threads on all cores and on one, in turns; medians of the better.
"""

from __future__ import annotations

import statistics
from typing import Any

import torch

from benchmarks.cells import run_module
from benchmarks.report import context, print_context, print_table, progress
from paceline.policy.kernels import has_amx
from paceline.pool.config import available_core_ids

OURS: dict[str, dict[str, Any]] = {
    "ours, DDPG": {"system": "ours", "value": "scalar", "prioritized": False},
    "ours, D4PG": {"system": "ours", "value": "categorical", "prioritized": True},
}
COMPILED = {f"{name}, compiled": options | {"compiled": True} for name, options in OURS.items()}
HALVED = {f"{name}, bfloat16": options | {"precision": "bfloat16"} for name, options in (OURS | COMPILED).items()}
SYSTEMS: dict[str, dict[str, Any]] = {
    **OURS,
    **COMPILED,
    **(HALVED if has_amx() else {}),
    "plain PyTorch, DDPG": {"system": "plain"},
    "Stable-Baselines3, TD3": {"system": "sb3"},
}


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    print_context(facts)
    rounds, seconds = (1, 2.0) if quick else (3, 8.0)
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    found = {device: measure(device, rounds, seconds) for device in devices}
    progress("")
    for device, rates in found.items():
        best = {name: max(statistics.median(samples) for samples in by.values()) for name, by in rates.items()}
        rivals = [name for name in best if not name.startswith("ours")]
        print_table(
            f"updates per second on {device}, median of {rounds} round{'s' * (rounds > 1)}",
            ["learner", *next(iter(rates.values())), *(f"/ {name}" for name in rivals)],
            [
                [
                    name,
                    *(f"{statistics.median(samples):,.0f}" for samples in by.values()),
                    *(f"{best[name] / best[rival]:.2f}" for rival in rivals),
                ]
                for name, by in rates.items()
            ],
        )
    return {"context": facts, "rates": found}


def measure(device: str, rounds: int, seconds: float) -> dict[str, dict[str, list[float]]]:
    """Samples by learner and number of threads."""
    cores = len(available_core_ids())
    threads = sorted({1, cores}) if device == "cpu" else [1]
    systems = {
        name: options
        for name, options in SYSTEMS.items()
        if device == "cpu" or name in OURS or not name.startswith("ours")
    }
    rates: dict[str, dict[str, list[float]]] = {
        name: {f"{count} thread{'s' * (count > 1)}": [] for count in threads} for name in systems
    }
    for number in range(rounds):
        for name, options in systems.items():
            for count, samples in zip(threads, rates[name].values(), strict=True):
                progress(f"{device}, round {number + 1}/{rounds}: {name}, {count} threads")
                asked = options | {"device": device, "threads": count, "seconds": seconds}
                samples.append(run_module("benchmarks.updates_cell", asked)["updates_per_second"])
    return rates
