"""Updates per second of off-policy learners: Paceline's, Stable-Baselines3's TD3, and DDPG in plain PyTorch.

All draw batches of 256 from 100,000 transitions of HalfCheetah's sizes (17 observations, 6 actions). Networks have
two layers of 256 units with ReLU, and targets move at every update. A TD3 update trains two critics, and every second
update trains the policy.

Paceline's learner is measured as DDPG (scalar critic, uniform draws) and as D4PG (51 atoms, priorities). On a CPU it
is also measured with compiled updates (`--compute.compile`) and, on CPUs with AMX, in bfloat16
(`--compute.precision`). On a GPU its updates are recorded, as in a run. Each measurement has its own process. On a
CPU it runs with one thread and with one thread per core; ratios are of the better.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any, Literal

import torch

from paceline.accel.kernels import has_amx
from paceline.pool.config import available_core_ids

from .cells import run_module
from .report import Result, Table, command_line, context, make_result, print_context, print_table, progress

EXTRA = "bench"
"""What `paceline bench` checks before it begins."""
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
    """The options of the benchmark."""

    learners: tuple[str, ...] = tuple(SYSTEMS)
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    rounds: int = 3
    seconds: float = 8.0
    """How long each figure is measured."""


def run(quick: bool) -> Result:
    return measure(Plan(rounds=1, seconds=2.0) if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    found = {device: rates_on(device, plan) for device in plan.devices}
    progress("")
    note = f"Medians of {plan.rounds} alternating rounds of {plan.seconds:g} s."
    tables = [show(device, rates) for device, rates in found.items()]
    return make_result("updates", facts, tables, note=note, measurements=found)


def show(device: str, rates: dict[str, dict[str, list[float]]]) -> Table:
    best = {name: max(statistics.median(samples) for samples in by.values()) for name, by in rates.items()}
    rivals = [name for name in best if not name.startswith("ours")]
    return print_table(
        f"Updates per second on {device}",
        ["learner", *next(iter(rates.values())), *(f"/ {name}" for name in rivals)],
        [
            [
                name,
                *(f"{statistics.median(samples):,.0f}" for samples in by.values()),
                *(f"{best[name] / best[rival]:.2f}" for rival in rivals),
            ]
            for name, by in rates.items()
        ],
        name=device,
    )


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
                samples.append(run_module(f"{__package__}.updates_cell", asked)["updates_per_second"])
                print(f"  {device}, {name}, {label}: {samples[-1]:,.0f}", flush=True)
    return rates


if __name__ == "__main__":
    command_line("updates", Plan, measure, __doc__)
