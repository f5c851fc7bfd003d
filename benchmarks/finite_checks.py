"""What it costs to look at every observation for numbers that are not finite: `python -m benchmarks.finite_checks`.

One serial pool whose observations are looked at and one whose observations are not, in turns: processor time of a step, the median over
many rounds. The no-op simulator does nothing but return the same array of 84x84x4 floats: all of its step is the pool's.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from typing import Any
from unittest import mock

from benchmarks.report import context, print_context, print_table
from paceline.pool import Pool, PoolConfig, make_pool
from paceline.pool.random_actions import RandomActions
from paceline.pool.spaces import Leaf

ENVS = {
    "CartPole": "gym:CartPole-v1",
    "HalfCheetah": "gym:HalfCheetah-v5",
    "no-op 84x84x4 float32": "synthetic:constant?mean=0&obs=84x84x4&dtype=float32",
}


def run(quick: bool) -> dict[str, Any]:
    facts = context()
    print_context(facts)
    found = {name: compare(env, rounds=5 if quick else 60) for name, env in ENVS.items()}
    print_table(
        "processor time of a step, serial pool of 16",
        ["", "µs without", "µs with", "ratio"],
        [[name, f"{row['without']:.2f}", f"{row['with']:.2f}", f"{row['ratio']:.3f}"] for name, row in found.items()],
    )
    return {"context": facts, "steps": found}


def compare(env: str, rounds: int) -> dict[str, float]:
    """Microseconds of a step with the looks and without, and the median ratio of two rounds that follow each other."""
    with ExitStack() as stack:
        with mock.patch.object(Leaf, "is_floating", False):
            plain = stack.enter_context(make_pool(env, PoolConfig(kind="serial", num_envs=16)))
        checked = stack.enter_context(make_pool(env, PoolConfig(kind="serial", num_envs=16)))
        pairs = [(measure(plain), measure(checked)) for _ in range(rounds + 1)][1:]
    without, looked = (statistics.median(times) for times in zip(*pairs, strict=True))
    return {"without": without, "with": looked, "ratio": statistics.median(b / a for a, b in pairs)}


def measure(pool: Pool, seconds: float = 0.1) -> float:
    """Microseconds of processor time of a step. All slots are in flight before and after."""
    actions, count, begin = RandomActions(pool.spec), 0, time.process_time()
    while (spent := time.process_time() - begin) < seconds:
        batch = pool.recv(min_slots=None)
        pool.send(actions.next(batch.slots), batch.slots)
        count += len(batch)
    return spent / count * 1e6


if __name__ == "__main__":
    run(quick=False)
