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
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro

from benchmarks.cells import run_module
from benchmarks.report import context, print_context, print_table, progress
from paceline.accel.kernels import has_amx
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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which part of it to measure, and how long."""

    learners: tuple[str, ...] = tuple(SYSTEMS)
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    rounds: int = 3
    seconds: float = 8.0
    """Of each measurement."""


def run(quick: bool) -> dict[str, Any]:
    return measure(Plan(rounds=1, seconds=2.0) if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> dict[str, Any]:
    print_context(facts)
    found = {device: rates_on(device, plan) for device in plan.devices}
    progress("")
    for device, rates in found.items():
        best = {name: max(statistics.median(samples) for samples in by.values()) for name, by in rates.items()}
        rivals = [name for name in best if not name.startswith("ours")]
        print_table(
            f"updates per second on {device}, median of {plan.rounds} round{'s' * (plan.rounds > 1)}",
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


def rates_on(device: str, plan: Plan) -> dict[str, dict[str, list[float]]]:
    """Samples by learner and number of threads."""
    cores = len(available_core_ids())
    threads = sorted({1, cores}) if device == "cpu" else [1]
    systems = {
        name: SYSTEMS[name] for name in plan.learners if device == "cpu" or name in OURS or not name.startswith("ours")
    }
    rates: dict[str, dict[str, list[float]]] = {
        name: {f"{count} thread{'s' * (count > 1)}": [] for count in threads} for name in systems
    }
    for number in range(plan.rounds):
        for name, options in systems.items():
            for (label, samples), count in zip(rates[name].items(), threads, strict=True):
                progress(f"{device}, round {number + 1}/{plan.rounds}: {name}, {label}")
                asked = options | {"device": device, "threads": count, "seconds": plan.seconds}
                samples.append(run_module("benchmarks.updates_cell", asked)["updates_per_second"])
                print(f"  {device}, {name}, {label}: {samples[-1]:,.0f}", flush=True)
    return rates


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__), context("python -m benchmarks.updates"))
