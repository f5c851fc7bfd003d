"""DD-PPO, NoVER, VER and APPO on one to eight ranks that learn to open a fridge in MuJoCo (VER's table 1).

The step times are those of the simulator: they differ by contacts, houses and resets. The first tables show them, in
one process without a policy. A rank has several environments, each in its own process, and an LSTM policy that learns
in 2 epochs of 2 mini-batches. DD-PPO preempts stragglers. NoVER is VER with the same number of steps from every
environment. APPO learns from batches of the same size, concurrently with collection.

Figures are steps per second of all ranks. In each round all systems are measured, one after the other, and the median
over rounds counts. The first iteration of a measurement does not. All ranks share the cores, and with `--device cuda`
also one GPU. `python -m benchmarks.rearrangement_ranks --help` lists the options.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from paceline.envs import resolve
from paceline.sims.rearrangement.dynamics.config import RENDERERS
from paceline.wording import counted

from .ranks import launch
from .report import Result, Table, command_line, context, make_result, print_context, print_table

EXTRA = "mujoco"
SYSTEMS = ("DD-PPO", "NoVER", "VER", "APPO")
RATIOS = (("VER", "DD-PPO"), ("VER", "NoVER"), ("APPO", "VER"))
SHARES = (50, 90, 99)
"""Percentiles of step times."""
SHOWN_HOUSES = 3
"""The fastest and the slowest of the houses in the table."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    ranks: tuple[int, ...] = (1, 2, 4, 8)
    envs: int = 4
    """Environments of a rank."""
    steps: int = 64
    """Steps of each environment in a rollout."""
    seconds: float = 5.0
    """Time of a measurement at least. It also has 3 iterations at least."""
    rounds: int = 3
    task: str = "open_fridge"
    tier: Literal["small", "full"] = "full"
    """Size of the houses."""
    scenes: int = 64
    """Number of houses."""
    images: Literal["mujoco", "traced", "none"] = "mujoco"
    """What renders. "traced" needs no OpenGL, and "none" leaves images out."""
    resolution: int = 64
    encoder: str = "patches"
    """Of images. VER's is "ver_resnet18"."""
    device: Literal["cpu", "cuda"] = "cpu"
    timed_steps: int = 2000
    """Steps in one process that show the step times."""

    @property
    def env(self) -> str:
        sensors = (
            f"renderer={self.images}&resolution={self.resolution}" if self.images in RENDERERS else "sensors=blind"
        )
        return f"rearrange_mujoco:{self.task}?tier={self.tier}&scenes={self.scenes}&{sensors}"


QUICK = Plan(
    ranks=(1, 2), envs=2, steps=8, seconds=0.5, rounds=1, scenes=4, tier="small", images="none", timed_steps=250
)


class Timed(NamedTuple):
    """Times of one environment in seconds."""

    steps: dict[int, list[float]]
    """By house."""
    resets: list[float]


def run(quick: bool) -> Result:
    return measure(QUICK if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    timed = time_steps(plan)  # before any rank starts: it also generates the houses, and finds a missing renderer
    tables = step_tables(timed)
    cells: dict[tuple[int, str], list[dict[str, float]]] = {}
    for size in plan.ranks:
        settings = [
            asdict(plan) | {"env": plan.env, "system": system} for _ in range(plan.rounds) for system in SYSTEMS
        ]
        for result in launch(f"{__package__}.rearrangement_rank", size, settings):
            cells.setdefault((size, result["system"]), []).append({name: result[name] for name in ("mean", "best")})
            print(f"  {size} ranks, {result['system']}: {result['mean']:.0f}", flush=True)
    tables.append(speed_table(plan, cells))
    measurements = {
        "plan": asdict(plan),
        "cells": [{"ranks": size, "system": system, "rounds": found} for (size, system), found in cells.items()],
        "step_seconds": {str(house): times for house, times in timed.steps.items()},
        "reset_seconds": timed.resets,
    }
    return make_result("rearrangement_ranks", facts, tables, measurements=measurements)


def time_steps(plan: Plan) -> Timed:
    """Step one environment with random actions, with the cup closed now and then."""
    env = resolve(plan.env).make(0)
    random = np.random.default_rng(0)
    timed = Timed({}, [])
    env.reset(seed=0)
    for _ in range(plan.timed_steps):
        action = random.uniform(-1.0, 1.0, env.action_space.shape).astype(np.float32)
        house = int(env.simulator.stream.scenes[0])
        seconds, (*_, terminated, truncated, _) = _timed(lambda action=action: env.step(action))
        timed.steps.setdefault(house, []).append(seconds)
        if terminated or truncated:
            timed.resets.append(_timed(env.reset)[0])
    env.close()
    return timed


def _timed(call: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    found = call()
    return time.perf_counter() - start, found


def step_tables(timed: Timed) -> list[Table]:
    everything = [seconds for times in timed.steps.values() for seconds in times]
    columns = ["median", *(f"{share} %" for share in SHARES[1:]), "maximum", "count"]
    rows = [["step", *_spread(everything)], *([["reset", *_spread(timed.resets)]] if timed.resets else [])]
    title = "Time of a step and of a reset in milliseconds, one process, random actions"
    tables = [print_table(title, ["", *columns], rows, name="step_times")]
    order = sorted(timed.steps, key=lambda house: statistics.median(timed.steps[house]))
    shown = order if len(order) <= 2 * SHOWN_HOUSES else [*order[:SHOWN_HOUSES], *order[-SHOWN_HOUSES:]]
    title = f"Time of a step by house in milliseconds: the fastest and the slowest {SHOWN_HOUSES} of {len(order)}"
    rows = [[str(house), *_spread(timed.steps[house])] for house in shown]
    return [*tables, print_table(title, ["house", *columns], rows, name="houses")]


def _spread(times: list[float]) -> list[str]:
    shares = np.percentile(np.array(times) * 1e3, [*SHARES, 100])
    return [*(f"{share:.1f}" for share in shares), str(len(times))]


def speed_table(plan: Plan, cells: dict[tuple[int, str], list[dict[str, float]]]) -> Table:
    def median(size: int, system: str, name: str) -> float:
        return statistics.median(found[name] for found in cells[size, system])

    rows = []
    for size in plan.ranks:
        mean = {system: median(size, system, "mean") for system in SYSTEMS}
        shown = [f"{mean[system]:,.0f} ({median(size, system, 'best'):,.0f})" for system in SYSTEMS]
        rows.append([str(size), *shown, *(f"{mean[one] / mean[other]:.2f}" for one, other in RATIOS)])
    return print_table(
        f"{plan.task}, {plan.envs} environments a rank, {plan.device} learns: steps per second (of the best iteration)",
        ["ranks", *SYSTEMS, *map(" / ".join, RATIOS)],
        rows,
        name="ranks",
        note=f"Medians of {counted(plan.rounds, 'round')} of {plan.seconds:g} s. {plan.env}, encoder {plan.encoder}.",
    )


if __name__ == "__main__":
    command_line("rearrangement_ranks", Plan, measure, __doc__)
