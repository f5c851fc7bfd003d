"""Paceline's pools, the vector environments of Gymnasium and Stable-Baselines3, and an upper bound.

All step the same environments with random actions; figures are agent steps per second. The bound is one plain loop
per core that sends nothing anywhere. The systems of a row are measured alternately, and a cell is the median, because
machines are noisy. Further tables compare the `envpool` backend with EnvPool itself, and `recv` of any slots with
`recv` of all slots on uneven, sleeping simulators.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

from .cells import run_cell
from .pool_cell import SYSTEMS
from .pool_envpool import measure_envpool
from .pool_uneven import measure_uneven
from .report import Result, Table, context, make_result, print_context, print_table, progress

EXTRA = "bench"
"""What `paceline bench` checks before it begins."""
WORKLOADS = {
    "CartPole": "gym:CartPole-v1",
    "HalfCheetah": "gym:HalfCheetah-v5",
    "Breakout 84x84x4": "atari:Breakout",
    "Doom my_way_home": "doom:my_way_home",
    "no-op 128x72x3": "synthetic:constant?mean=0&obs=3x72x128",
}
SIZES = (2, 8, 32, 64)
ALL_SYSTEMS = ("bound", *SYSTEMS)
CELL_TIMEOUT_SECONDS = 600
SLOW_STARTERS = ("sb3 Subproc",)
"""Measured once. Each of its processes imports PyTorch, so 64 of them take minutes to start on few cores."""


def run(quick: bool) -> Result:
    facts = context()
    print_context(facts)
    workloads = {"CartPole": WORKLOADS["CartPole"]} if quick else WORKLOADS
    sizes = (8,) if quick else SIZES
    seconds = 0.5 if quick else 1.5
    cells: dict[str, dict[str, Any]] = {}
    tables: list[Table] = []
    for label, env in workloads.items():
        for num_envs in sizes:
            cells[f"{label} / {num_envs}"] = measure_row(
                label, env, num_envs, seconds, rounds=2 if num_envs == 32 else 1
            )
        tables += print_workload(label, {n: cells[f"{label} / {n}"] for n in sizes})
    (envpool_table, envpool), (uneven_table, uneven) = measure_envpool(quick), measure_uneven(quick)
    note = f"A cell is one measurement of {seconds:g} s; with 32 environments it is the median of two."
    measurements = {"cells": cells, "envpool": envpool, "uneven": uneven}
    return make_result("pool", facts, [*tables, envpool_table, uneven_table], note=note, measurements=measurements)


def measure_row(label: str, env: str, num_envs: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Every system on one workload and size, alternately over rounds; the median of every figure."""
    samples: dict[str, list[dict[str, float]]] = {system: [] for system in ALL_SYSTEMS}
    for number in range(rounds):
        for system in ALL_SYSTEMS:
            if number and system in SLOW_STARTERS:
                continue
            progress(f"{label}, {num_envs} environments, round {number + 1}/{rounds}: {system}")
            samples[system].append(measure_cell(system, env, num_envs, seconds))
    progress("")
    return {
        system: {key: statistics.median(s[key] for s in runs) for key in runs[0]}
        for system, runs in samples.items()
        if runs
    }


def measure_cell(system: str, env: str, num_envs: int, seconds: float) -> dict[str, float]:
    command = [sys.executable, "-m", f"{__package__}.pool_cell", system, env, str(num_envs), str(seconds)]
    return run_cell(command, CELL_TIMEOUT_SECONDS)


def print_workload(label: str, rows: dict[int, dict[str, Any]]) -> list[Table]:
    name = label.partition(" ")[0].lower().replace("-", "")
    rates = print_table(
        f"{label}: steps per second",
        ["envs", *ALL_SYSTEMS, "process / Async", "process / bound", "auto / best"],
        [
            [str(n), *(shown(row, s, "{steps_per_second:,.0f}") for s in ALL_SYSTEMS), *ratios(row)]
            for n, row in rows.items()
        ],
        name=f"{name}_rates",
    )
    timed = [s for s in ALL_SYSTEMS if s != "bound"]
    costs = print_table(
        f"{label}: seconds to start / megabytes per environment",
        ["envs", *timed],
        [
            [str(n), *(shown(row, s, "{start_seconds:.1f} / {megabytes_per_env:.0f}") for s in timed)]
            for n, row in rows.items()
        ],
        name=f"{name}_costs",
    )
    return [rates, costs]


def shown(row: dict[str, Any], system: str, form: str) -> str:
    return form.format(**row[system]) if system in row else "-"


def ratios(row: dict[str, Any]) -> list[str]:
    rate = {system: figures["steps_per_second"] for system, figures in row.items()}
    best_process = max(rate["process"], rate["process x2"])
    best_backend = max(rate["serial"], best_process)
    return [
        f"{best_process / rate['gym Async']:.2f}",
        f"{best_process / rate['bound']:.2f}",
        f"{rate['auto'] / best_backend:.2f}",
    ]
