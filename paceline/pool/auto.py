"""Choosing a backend by measurement, because no rule is right for all simulators.

On few cores, processes make light environments several times slower. A simulator that waits (for a GPU, a network, a
sleep) needs more processes than there are cores. A simulator that runs in a process of its own (ViZDoom) alternates
with its worker, so on many cores it needs two workers per core; on few cores these would only get in each other's way.

So one environment is stepped for a moment in a process of its own, where it can do no harm. If that does not decide,
the candidates are tried out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import psutil

from paceline.envs.factory import Factory
from paceline.errors import SimulatorError
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.process import ProcessPool
from paceline.pool.protocol import Pool, PoolSpec
from paceline.pool.random_actions import RandomActions
from paceline.pool.serial import SerialPool
from paceline.telemetry.phases import Phases
from paceline.wording import counted

log = logging.getLogger(__name__)

PROBE_SECONDS = 0.3
TRIAL_SECONDS = 0.4
WAITING_SHARE = 0.5
"""A simulator that uses less than this share of a core while it steps waits for something else."""
HEAVY_SECONDS = 0.0003
"""For longer steps messages cost little, so one worker per core is right without a trial."""
MAX_WAITING_WORKERS = 256
OWN_PROCESS_SHARE = 0.25
"""A simulator whose own processes do this share of the computing runs next to its worker."""
FEW_CORES = 4
"""On up to this many cores no core idles while simulators work."""
PROBE_RESTARTS = 1
"""How often the measured environment may be replaced. With `on_error restart` the limit is that of training."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What one environment looks like and costs."""

    spec: PoolSpec
    step_seconds: float
    cpu_share: float
    """Processor time, used or waited for, over simulation time: near 1 if it computes, near 0 if it waits."""
    has_own_process: bool
    """Whether processes that the simulator started do much of the computing."""
    is_safe: bool
    """Whether it did not fail."""


def choose(factory: Factory, config: PoolConfig, seed: int, phases: Phases | None = None) -> Pool:
    """The fastest pool for `factory` on this machine. `config.kind` is "auto", or "process" to choose workers only."""
    phases = phases or Phases()
    phases.show("measuring one environment", 0, 0)
    cost = probe(factory, config)
    phases.clear()
    process = partial(ProcessPool, factory, seed=seed, phases=phases)
    cores = len(available_core_ids())
    if cost.cpu_share < WAITING_SHARE:
        workers = min(config.num_envs, MAX_WAITING_WORKERS)
        return _decide(process, config, cost, workers, "it waits more than it computes: one worker each")
    if cost.has_own_process and cores > FEW_CORES:
        workers = min(config.num_envs, 2 * cores)
        return _decide(process, config, cost, workers, "it has a process of its own: two workers per core")
    if cost.step_seconds > HEAVY_SECONDS:
        return _decide(process, config, cost, min(config.num_envs, cores), "heavy steps: one worker per core")
    may_run_here = config.kind == "auto" and cost.is_safe  # a crash in this process would end the run
    trials: list[Callable[[], Pool]] = [lambda: SerialPool(factory, config, seed, phases)] if may_run_here else []
    for workers in sorted({1, min(cores, config.num_envs)}):
        trials.append(partial(process, config=replace(config, workers=workers)))
    return _fastest(trials, seed)


def probe(factory: Factory, config: PoolConfig) -> Probe:
    """Step one environment in a worker process for a moment. If it fails or hangs twice, raise a `SimulatorError`."""
    allowed = config.max_restarts_per_hour if config.max_restarts is None else config.max_restarts
    restarts = allowed if config.on_error == "restart" else min(PROBE_RESTARTS, allowed)
    alone = replace(config, num_envs=1, workers=1, groups=1, nice=0, max_restarts=restarts)
    try:
        with ProcessPool(factory, alone) as pool:
            batch = pool.recv(min_slots=None)
            actions = RandomActions(pool.spec)
            pool.send(actions.next(batch.slots, batch.obs), batch.slots)
            while True:
                workers = pool.worker_pids()
                cost = _measure_one(pool, actions)
                if pool.worker_pids() == workers:  # otherwise the worker was replaced during the measurement
                    return replace(cost, is_safe=pool.restarts == 0)
    except SimulatorError as error:
        note = "it failed while one environment was measured to choose a pool"
        if error.failure.phase != "make":
            note += "; --pool.kind serial, or a number of --pool.workers, needs no measurement"
        raise SimulatorError(error.failure, note) from error


def _measure_one(pool: ProcessPool, actions: RandomActions) -> Probe:
    """Measure the only environment of `pool`, which is in flight."""
    worker = pool.worker_pids()[0]
    start, worker_start, children_start = time.monotonic(), *_tree_demand(worker)
    costs: list[float] = []
    while time.monotonic() - start < PROBE_SECONDS or len(costs) < 3:
        batch = pool.recv(min_slots=None)
        costs.append(float(batch.step_seconds[0]))
        pool.send(actions.next(batch.slots, batch.obs), batch.slots)
    worker_end, children_end = _tree_demand(worker)
    by_worker, by_children = worker_end - worker_start, children_end - children_start
    return Probe(
        spec=pool.spec,
        step_seconds=float(np.mean(costs)),
        cpu_share=min(1.0, (by_worker + by_children) / sum(costs)),
        has_own_process=by_children > OWN_PROCESS_SHARE * (by_worker + by_children),
        is_safe=True,
    )


def _tree_demand(pid: int) -> tuple[float, float]:
    """`_demand_seconds` of a worker and of the processes that it started. 0 if it has ended."""
    try:
        worker = psutil.Process(pid)
        return _demand_seconds(worker), sum(map(_demand_seconds, worker.children(recursive=True)))
    except psutil.Error:
        return 0.0, 0.0


def _demand_seconds(process: psutil.Process) -> float:
    """Time in which a process computed, or was ready to compute while others had the core.

    Without the second part, a simulator that computes on a busy machine would look like one that waits.
    """
    try:
        stats = [stat.read_text().split() for stat in Path(f"/proc/{process.pid}/task").glob("*/schedstat")]
        total = sum(int(computed) + int(queued) for computed, queued, _ in stats) / 1e9
        if total == 0.0:  # not Linux, or a kernel without scheduler statistics
            times = process.cpu_times()
            total = times.user + times.system
    except (OSError, psutil.Error):  # it has ended
        return 0.0
    return total


def _decide(process: Callable[..., Pool], config: PoolConfig, cost: Probe, workers: int, why: str) -> Pool:
    costs = f"{cost.step_seconds * 1000:.2f} ms a step, {cost.cpu_share:.0%} of a core"
    log.info("pool: process with %d workers (%s; %s)", workers, costs, why)
    return process(config=replace(config, workers=workers))


def _fastest(trials: list[Callable[[], Pool]], seed: int) -> Pool:
    """Try each pool in lock-step. Returns the fastest as if it were new."""
    best: Pool | None = None
    best_rate, measured = 0.0, []
    for build in trials:
        pool = build()
        rate = measure(pool, TRIAL_SECONDS)
        measured.append(f"{describe(pool)} {rate:,.0f}/s")
        if rate > best_rate:
            best, pool, best_rate = pool, best, rate
        if pool is not None:
            pool.close()
    assert best is not None
    log.info("pool: %s (measured: %s)", describe(best), ", ".join(measured))
    best.reset(seed)
    return best


def measure(pool: Pool, seconds: float) -> float:
    """Steps per second under random actions, every group in turn. The slow first round does not count."""
    actions = RandomActions(pool.spec)
    groups = range(pool.spec.num_groups)

    def turn() -> int:
        count = 0
        for group in groups:
            batch = pool.recv(min_slots=None, group=group)
            pool.send(actions.next(batch.slots, batch.obs), batch.slots)
            count += len(batch)
        return count

    turn()
    start, steps = time.monotonic(), 0
    while time.monotonic() - start < seconds:
        steps += turn()
    rate = steps / (time.monotonic() - start)
    for group in groups:
        pool.recv(min_slots=None, group=group)
    return rate


def describe(pool: Pool) -> str:
    if isinstance(pool, ProcessPool):
        return f"process with {counted(len(pool.worker_pids()), 'worker')}"
    return type(pool).__name__.removesuffix("Pool").lower()
