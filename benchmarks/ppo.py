"""Training speed of `ddppo` over the `envpool` pool against PPO over EnvPool written as CleanRL writes it.

The same network, environments, rollouts, epochs and mini-batches; learning on; agent steps per second. Systems take
turns over the rounds, and the medians are compared, since machines are noisy. The peer's threads are PyTorch's
default (all cores); ours are what the library chooses, and the peer is measured with that number as well.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

from benchmarks.cells import run_module
from benchmarks.report import context, print_context, print_table, progress

MLP = {"hidden": 64, "rollout_steps": 128, "num_envs": 64, "epochs": 1, "minibatches": 4}
CNN = {"hidden": 64, "rollout_steps": 32, "num_envs": 32, "epochs": 1, "minibatches": 4}
WORKLOADS: dict[str, dict[str, Any]] = {
    "CartPole": {"task": "CartPole-v1", "lstm": 0, **MLP},
    "CartPole, LSTM 64": {"task": "CartPole-v1", "lstm": 64, **MLP},
    "HalfCheetah": {"task": "HalfCheetah-v4", "lstm": 0, **MLP},
    "HalfCheetah, LSTM 64": {"task": "HalfCheetah-v4", "lstm": 64, **MLP},
    "Breakout": {"task": "Breakout-v5", "lstm": 0, **CNN},
    "Breakout, LSTM 512": {"task": "Breakout-v5", "lstm": 512, **CNN},
}


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    print_context(facts)
    cores = os.cpu_count() or 1
    workloads = {"CartPole": WORKLOADS["CartPole"]} if quick else WORKLOADS
    rounds, results = (1 if quick else 3), {}
    for label, workload in workloads.items():
        seconds = 5 if quick else (30 if "Breakout" in label else 12)
        samples: dict[str, list[float]] = {"paceline": [], "peer": [], "peer, 1 thread": []}
        for number in range(rounds):
            for system in samples:
                progress(f"{label}, round {number + 1}/{rounds}: {system}")
                samples[system].append(measure(system, workload | {"seconds": seconds}, cores))
        results[label] = {system: statistics.median(rates) for system, rates in samples.items()} | {"samples": samples}
    progress("")
    print_table(
        "steps per second, training",
        ["workload", "paceline ddppo", "PPO over EnvPool", "the same, 1 thread", "ratio to its better"],
        [row(label, figures) for label, figures in results.items()],
    )
    return {"context": facts, "results": results}


def row(label: str, figures: dict[str, Any]) -> list[str]:
    best = max(figures["peer"], figures["peer, 1 thread"])
    shown = [f"{figures[system]:,.0f}" for system in ("paceline", "peer", "peer, 1 thread")]
    return [label, *shown, f"{figures['paceline'] / best:.2f}"]


def measure(system: str, options: dict[str, Any], cores: int) -> float:
    if system == "paceline":
        module, threads = "benchmarks.ppo_cell", None
    else:
        module, threads = "benchmarks.peers.ppo_envpool", 1 if "1 thread" in system else cores
    return run_module(module, options | {"threads": threads})["steps_per_second"]
