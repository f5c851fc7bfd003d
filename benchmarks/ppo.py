"""Training speed of `ddppo` with the `envpool` pool, and of PPO over EnvPool written in the style of CleanRL.

Both have the same network, environments, rollouts, epochs and mini-batches; figures are agent steps per second while
learning. The systems are measured alternately, and medians are compared, because machines are noisy. The peer is
measured with PyTorch's default number of threads (all cores) and with one thread. Paceline chooses its own number.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

from .cells import run_module
from .report import Result, context, make_result, print_context, print_table, progress

EXTRA = "envpool"
"""What `paceline bench` checks before it begins."""
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


def run(quick: bool) -> Result:
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
    table = print_table(
        "Agent steps per second in training",
        ["workload", "ddppo", "PPO over EnvPool", "PPO over EnvPool, 1 thread", "ddppo / best peer"],
        [row(label, figures) for label, figures in results.items()],
        name="training",
    )
    note = f"Medians of {rounds} alternating rounds."
    return make_result("ppo", facts, [table], note=note, measurements=results)


def row(label: str, figures: dict[str, Any]) -> list[str]:
    best = max(figures["peer"], figures["peer, 1 thread"])
    shown = [f"{figures[system]:,.0f}" for system in ("paceline", "peer", "peer, 1 thread")]
    return [label, *shown, f"{figures['paceline'] / best:.2f}"]


def measure(system: str, options: dict[str, Any], cores: int) -> float:
    if system == "paceline":
        module, threads = f"{__package__}.ppo_cell", None
    else:
        module, threads = f"{__package__}.peers.ppo_envpool", 1 if "1 thread" in system else cores
    return run_module(module, options | {"threads": threads})["steps_per_second"]
