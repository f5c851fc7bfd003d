"""What it costs the receiving process to wait, with naps and without: `python -m benchmarks.pool_naps`.

256 simulators that sleep, log-normal, in 16 worker processes, so that slots come one by one; 32 are received at a time. Processor time
of the receiving process for a slot, and slots per second; both ways in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from benchmarks.report import context, print_context, print_table
from paceline.accel.naps import Naps
from paceline.pool import PoolConfig, make_pool
from paceline.pool.random_actions import RandomActions

STEP_SECONDS = (0.005, 0.002, 0.001)
SECONDS = 5.0


def measure(step_seconds: float) -> tuple[float, float]:
    """Processor time of a slot, in microseconds, and slots per second."""
    env = f"synthetic:lognormal?mean={step_seconds}&obs=4x84x84"
    with make_pool(env, PoolConfig(kind="process", num_envs=256, workers=16)) as pool:
        actions = RandomActions(pool.spec)
        batch = pool.recv(min_slots=None)
        slots, begin, busy = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - begin < SECONDS:
            pool.send(actions.next(batch.slots), batch.slots)
            batch = pool.recv(min_slots=32, max_slots=40)
            slots += len(batch)
        return (time.process_time() - busy) / slots * 1e6, slots / (time.perf_counter() - begin)


def main() -> None:
    print_context(context("python -m benchmarks.pool_naps"))
    ways: list[Callable[..., bool]] = [lambda *_: False, Naps.take]
    rows = []
    for step_seconds in STEP_SECONDS:
        row = [f"{1000 * step_seconds:g} ms"]
        for way in ways:
            Naps.take = way  # type: ignore[method-assign]
            cost, rate = measure(step_seconds)
            row += [f"{cost:.1f}", f"{rate:,.0f}"]
        rows.append(row)
    print_table(
        "receiving 32 slots of 256, without and with naps",
        ["a step takes", "µs without", "slots/s without", "µs with", "slots/s with"],
        rows,
    )


if __name__ == "__main__":
    main()
