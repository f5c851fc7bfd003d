"""Training with one thread that decides, and with several (`batching.inference_workers`), under VER and APPO.

Simulators that sleep for 10 ms a step, log-normal, each in a process of its own, so that cores are left for decisions: with
images and a network that takes a while, and with numbers and one that does not. Then ViZDoom, which computes. Learning is on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Any

from benchmarks.cells import CellError, last_line, run_cell
from benchmarks.report import context, print_context, print_table, progress

SLEEPING = "synthetic:lognormal?mean=0.01&sigma=1&episode_length=200"
UPDATE = {"rollout_steps": 32, "epochs": 1, "minibatches": 4, "threads": None, "hidden": 512, "lstm": 512}
WORKLOADS: dict[str, dict[str, Any]] = {
    "84x84x4, LSTM 512": UPDATE | {"env": f"{SLEEPING}&obs=4x84x84", "num_envs": 32, "pool_workers": 32},
    "numbers, LSTM 64": UPDATE
    | {"env": f"{SLEEPING}&obs=8&dtype=float32", "num_envs": 64, "pool_workers": 64, "hidden": 64, "lstm": 64},
    "Doom, LSTM 512": UPDATE | {"env": "doom:my_way_home", "num_envs": 32, "encoder": "sample_factory"},
}
SYSTEMS = ("ver", "appo")
START_SECONDS = 120.0

Rates = dict[tuple[str, str, int], list[float]]


def run(quick: bool) -> dict[str, Any]:
    if quick:
        return measure(context(), workloads=["numbers, LSTM 64"], workers=[1, 2], rounds=1, seconds=4.0)
    return measure(context())


def measure(
    facts: dict[str, Any],
    *,
    workloads: list[str] | None = None,
    workers: list[int] | None = None,
    rounds: int = 2,
    seconds: float = 15.0,
    device: str = "cpu",
    num_envs: int | None = None,
) -> dict[str, Any]:
    print_context(facts)
    numbers = workers or [1, 2, 4]
    rates: Rates = {}
    rows = [(label, system) for label in workloads or WORKLOADS for system in SYSTEMS]
    for number in range(rounds):
        for label, system in rows:
            for count in numbers:
                progress(f"round {number + 1}/{rounds}: {label}, {system}, {count}")
                options = WORKLOADS[label] | {"system": system, "inference_workers": count, "pool": "process"}
                if num_envs is not None:
                    options |= dict.fromkeys({"num_envs", "pool_workers"} & options.keys(), num_envs)
                rate = steps_per_second(options | {"seconds": seconds, "device": device})
                if rate is not None:
                    rates.setdefault((label, system, count), []).append(rate)
    progress("")
    shown = [[f"{label}, {system}", *cells(rates, label, system, numbers)] for label, system in rows]
    print_table(
        f"steps per second by inference workers, median of {rounds}", ["", *map(str, numbers), "best / one"], shown
    )
    results = [
        {"workload": label, "system": system, "workers": count, "rates": found}
        for (label, system, count), found in rates.items()
    ]
    return {"context": facts, "results": results}


def steps_per_second(options: dict[str, Any]) -> float | None:
    command = [sys.executable, "-m", "benchmarks.ppo_cell", json.dumps(options)]
    try:
        return run_cell(command, START_SECONDS + options["seconds"])["steps_per_second"]
    except CellError as error:
        print(f"no figure: {last_line(str(error))}", flush=True)
        return None


def cells(rates: Rates, label: str, system: str, numbers: list[int]) -> list[str]:
    found = {n: statistics.median(rates[label, system, n]) for n in numbers if (label, system, n) in rates}
    ratio = f"{max(found.values()) / found[1]:.2f}" if 1 in found else ""
    return [f"{found[n]:,.0f}" if n in found else "" for n in numbers] + [ratio]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--num-envs", type=int, help="instead of each workload's own number of environments")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    measure(context("python -m benchmarks.inference_workers"), **vars(parser.parse_args()))


if __name__ == "__main__":
    main()
