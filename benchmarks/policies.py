"""Throughput with 1, 2, 4 and 8 policies in one run: the second half of Sample Factory's table A.3.

Every policy learns from batches as large as a single policy's. Policies are drawn anew for every episode. Runs with
different numbers of policies take turns, so that a machine that changes its speed slows all of them.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from .cells import CellError, last_line, run_module
from .report import Result, context, make_result, print_context, print_table, progress

POLICIES = (1, 2, 4, 8)
START_SECONDS = 240.0
BASE = {"system": "appo", "epochs": 1, "threads": None, "rollout_steps": 32}
CARTPOLE = BASE | {"env": "gym:CartPole-v1", "num_envs": 64, "lstm": 0, "hidden": 64, "minibatches": 4}
DOOM = BASE | {
    "env": "doom:my_way_home",
    "encoder": "sample_factory",
    "lstm": 512,
    "hidden": 64,
    "minibatches": 1,
}
WORKLOADS: dict[str, dict[str, Any]] = {
    "CartPole": CARTPOLE,
    "Doom, LSTM 512": DOOM | {"num_envs": 32},
    "Doom, LSTM 512, GPU": DOOM | {"num_envs": 128, "device": "cuda", "pool": "process", "pool_workers": 32},
}


def run(quick: bool) -> Result:
    labels = ["CartPole"]
    return measure(context(), labels, rounds=1, seconds=4.0) if quick else measure(context(), labels)


def measure(facts: dict[str, Any], labels: list[str], *, rounds: int = 3, seconds: float = 20.0) -> Result:
    print_context(facts)
    rates: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for label in labels:
            for policies in POLICIES:
                progress(f"round {number + 1}/{rounds}: {label}, {policies} policies")
                options = WORKLOADS[label] | {"policies": policies, "seconds": seconds}
                options["batch"] = options["num_envs"] * options["rollout_steps"]
                try:
                    found = run_module(f"{__package__}.ppo_cell", options, START_SECONDS + seconds)
                    rates.setdefault((label, policies), []).append(found["steps_per_second"])
                except CellError as error:
                    print(f"no figure of {label}, {policies} policies: {last_line(str(error))}", flush=True)
    progress("")
    rows = []
    for label in labels:
        middle = {p: statistics.median(rates[label, p]) for p in POLICIES if (label, p) in rates}
        for policies, rate in middle.items():
            ratios = [x / y for x, y in zip(rates[label, policies], rates[label, 1], strict=False)]
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            rows.append([label, str(policies), f"{rate:,.0f}", f"{statistics.median(ratios):.2f}", spread])
    table = print_table(
        f"Steps per second of appo, median of {rounds}, and the ratio to one policy, pair by pair",
        ["workload", "policies", "steps per second", "ratio", "ratios"],
        rows,
        name="policies",
    )
    measurements = [{"workload": k[0], "policies": k[1], "rates": v} for k, v in rates.items()]
    return make_result("policies", facts, [table], measurements=measurements)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=["CartPole", "Doom, LSTM 512"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = measure(
        context(f"python -m {__package__}.policies"), options.workloads, rounds=options.rounds, seconds=options.seconds
    )
    if options.json is not None:
        result.save(options.json)


if __name__ == "__main__":
    main()
