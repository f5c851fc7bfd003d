"""Choosing a backend by measurement.

No rule is right for all simulators: on few cores, processes cost light environments several times their own speed, and
a simulator that waits (for a GPU, a network, a sleep) wants more processes than there are cores. So one environment is
stepped for a moment in a process of its own, where it can do no harm, and what is still open then is tried out.

A step of a simulator that runs in a process which it starts itself (ViZDoom) is handed to and fro between the two. On 16 cores with a
worker each a quarter of them was idle; with two each Doom made 31,099 steps per second in training instead of 24,620. On two cores,
which are busy anyway, four workers were a tenth to a sixth slower than two.
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

from paceline.envs.registry import Factory
from paceline.errors import SimulatorError
from paceline.pool.config import PoolConfig, available_core_ids
from paceline.pool.process import ProcessPool
from paceline.pool.protocol import Pool, PoolSpec
from paceline.pool.random_actions import RandomActions
from paceline.pool.serial import SerialPool
from paceline.telemetry.phases import Phases

log = logging.getLogger(__name__)

PROBE_SECONDS = 0.3
TRIAL_SECONDS = 0.4
WAITING_SHARE = 0.5
"""A simulator that uses less than this share of a core while it steps is waiting for something else."""
HEAVY_SECONDS = 0.0003
"""From here on the cost of passing messages is lost in the step; one worker per core is right without a trial."""
MOST_WAITING_WORKERS = 256
APART_SHARE = 0.25
"""A simulator of which processes of its own compute this share is one that runs beside its worker. (Of ViZDoom it is 0.55.)"""
FEW_CORES = 4
"""On so many, cores are not taken to sleep while simulators are at work. (Measured on 2 and on 16.)"""
PROBE_RESTARTS = 1
"""How many times the one environment may be replaced while it is measured. With `on_error restart` it may be as often as in training."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What one environment looks like and costs."""

    spec: PoolSpec
    step_seconds: float
    cpu_share: float
    """Processor time, had or wanted, over simulation time: near 1 for a simulator that computes, near 0 for one that waits."""
    is_apart: bool
    """Whether a good part of it is computed by processes that the simulator started."""
    is_safe: bool
    """Whether it has not failed meanwhile."""


def choose(factory: Factory, config: PoolConfig, seed: int, phases: Phases | None = None) -> Pool:
    """The fastest pool for `factory` on this machine; `config.kind` is "auto", or "process" to choose workers only."""
    phases = phases or Phases()
    phases.show("measuring one environment", 0, 0)
    cost = probe(factory, config)
    phases.clear()
    process = partial(ProcessPool, factory, seed=seed, phases=phases)
    cores = len(available_core_ids())
    if cost.cpu_share < WAITING_SHARE:
        workers = min(config.num_envs, MOST_WAITING_WORKERS)
        return _decide(process, config, cost, workers, "it waits more than it computes: one worker each")
    if cost.is_apart and cores > FEW_CORES:
        workers = min(config.num_envs, 2 * cores)
        return _decide(process, config, cost, workers, "it is a process of its own: two workers per core")
    if cost.step_seconds > HEAVY_SECONDS:
        return _decide(process, config, cost, min(config.num_envs, cores), "heavy steps: one worker per core")
    may_run_here = config.kind == "auto" and cost.is_safe  # a fault in this process would end the run
    trials: list[Callable[[], Pool]] = [lambda: SerialPool(factory, config, seed, phases)] if may_run_here else []
    for workers in sorted({1, min(cores, config.num_envs)}):
        trials.append(partial(process, config=replace(config, workers=workers)))
    return _fastest(trials, seed)


def probe(factory: Factory, config: PoolConfig) -> Probe:
    """Step one environment in a worker process for a moment. What fails or hangs there is a `SimulatorError`, after one more try."""
    allowed = config.max_restarts_per_hour if config.max_restarts is None else config.max_restarts
    restarts = allowed if config.on_error == "restart" else min(PROBE_RESTARTS, allowed)
    alone = replace(config, num_envs=1, workers=1, groups=1, nice=0, max_restarts=restarts)
    try:
        with ProcessPool(factory, alone) as pool:
            slots = pool.recv(min_slots=None).slots
            actions = RandomActions(pool.spec)
            pool.send(actions.next(slots), slots)
            while True:
                workers = pool.worker_pids()
                cost = _measure_one(pool, actions)
                if pool.worker_pids() == workers:  # else the measurement belongs to no single worker
                    return replace(cost, is_safe=pool.restarts == 0)
    except SimulatorError as error:
        note = "it failed while one environment was measured to choose a pool; --pool.kind and --pool.workers choose one without"
        raise SimulatorError(error.failure, note) from error


def _measure_one(pool: ProcessPool, actions: RandomActions) -> Probe:
    """What the only environment of `pool`, which is in flight, costs."""
    worker = pool.worker_pids()[0]
    start, worker_start, children_start = time.monotonic(), *_demands(worker)
    costs: list[float] = []
    while time.monotonic() - start < PROBE_SECONDS or len(costs) < 3:
        batch = pool.recv(min_slots=None)
        costs.append(float(batch.step_seconds[0]))
        pool.send(actions.next(batch.slots), batch.slots)
    worker_end, children_end = _demands(worker)
    by_worker, by_children = worker_end - worker_start, children_end - children_start
    return Probe(
        spec=pool.spec,
        step_seconds=float(np.mean(costs)),
        cpu_share=min(1.0, (by_worker + by_children) / sum(costs)),
        is_apart=by_children > APART_SHARE * (by_worker + by_children),
        is_safe=True,
    )


def _demands(pid: int) -> tuple[float, float]:
    """What a worker has demanded so far, and what the processes have that it started; nothing, if it has ended."""
    try:
        worker = psutil.Process(pid)
        return _demand_seconds(worker), sum(map(_demand_seconds, worker.children(recursive=True)))
    except psutil.Error:
        return 0.0, 0.0


def _demand_seconds(process: psutil.Process) -> float:
    """Time that a process has computed, or wanted to while others had the core.

    Without the second part a simulator that computes on a busy machine would look like one that waits.
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
    log.info(
        "pool: process with %d workers (%.2f ms a step, %.0f %% of a core; %s)",
        workers,
        cost.step_seconds * 1000,
        cost.cpu_share * 100,
        why,
    )
    return process(config=replace(config, workers=workers))


def _fastest(trials: list[Callable[[], Pool]], seed: int) -> Pool:
    """Try each pool out in lock-step, and return the fastest as if it were new."""
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
    """Steps per second under random actions, every group in turn; the first round, which may be slow, not counted."""
    actions = RandomActions(pool.spec)
    groups = range(pool.spec.num_groups)

    def turn() -> int:
        count = 0
        for group in groups:
            slots = pool.recv(min_slots=None, group=group).slots
            pool.send(actions.next(slots), slots)
            count += len(slots)
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
        return f"process with {len(pool.worker_pids())} workers"
    return type(pool).__name__.removesuffix("Pool").lower()
