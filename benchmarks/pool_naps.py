"""Processor time that the receiving process spends on waiting, with naps and without: `python -m benchmarks.pool_naps`.

256 simulators sleep for log-normal times in 16 worker processes, so that slots become ready one by one. 32 are
received at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.accel.naps import Naps
from paceline.pool import PoolConfig, make_pool
from paceline.pool.random_actions import RandomActions

from .report import Result, command_line, make_result, print_context, print_table

STEP_SECONDS = (0.005, 0.002, 0.001)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    seconds: float = 5.0
    """How long each figure is measured."""


def measure_pool(step_seconds: float, seconds: float) -> tuple[float, float]:
    """Microseconds of processor time per slot, and slots per second."""
    env = f"synthetic:lognormal?mean={step_seconds}&obs=4x84x84"
    with make_pool(env, PoolConfig(kind="process", num_envs=256, workers=16)) as pool:
        actions = RandomActions(pool.spec)
        batch = pool.recv(min_slots=None)
        slots, begin, busy = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < seconds:
            pool.send(actions.next(batch.slots), batch.slots)
            batch = pool.recv(min_slots=32, max_slots=40)
            slots += len(batch)
        return (time.process_time() - busy) / slots * 1e6, slots / (time.perf_counter() - begin)


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    ways: list[Callable[..., bool]] = [lambda *_: False, Naps.take]
    rows = []
    for step_seconds in STEP_SECONDS:
        row = [f"{1000 * step_seconds:g} ms"]
        for way in ways:
            Naps.take = way  # type: ignore[method-assign]
            cost, rate = measure_pool(step_seconds, plan.seconds)
            row += [f"{cost:.1f}", f"{rate:,.0f}"]
        rows.append(row)
    table = print_table(
        "Receiving 32 slots of 256, without and with naps",
        ["a step takes", "µs per slot, without", "slots per second", "µs per slot, with", "slots per second, with"],
        rows,
        name="naps",
    )
    return make_result("pool_naps", facts, [table])


if __name__ == "__main__":
    command_line("pool_naps", Plan, measure, __doc__)
