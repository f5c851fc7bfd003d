"""Gain of each acceleration: with it and without it, side by side in alternation.

A ratio is the time without the acceleration over the time with it: above 1 is a gain. It is the median over rounds,
with a 95 % interval. Rows that need a GPU, AMX or an ARM processor are measured only where there is one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor, sqrt
from typing import Any

import torch
import tyro

from paceline.accel import activations
from paceline.accel.kernels import has_amx
from paceline.accel.processor import ON_ARM
from paceline.nets.encoders import NatureCNN, SampleFactoryConv
from paceline.pool.config import available_core_ids

from . import accelerations_work as work
from .accelerations_work import Pair, timed, wall
from .report import Result, context, make_result, print_context, print_table, progress


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Which rows to measure, and for how long."""

    only: tuple[str, ...] = ()
    """Names of accelerations; all of them if empty."""
    rounds: int = 30
    """Alternations of a row that one process measures."""
    seconds: float = 0.15
    """Each measurement of such a row."""
    cell_rounds: int = 7
    """Alternations of a row whose measurements are processes."""
    cell_seconds: float = 8.0
    """Each measurement of such a row."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    name: str
    workload: str
    make: Callable[[], Pair]
    is_cell: bool = False
    """Whether each measurement is a process of its own."""


def cases() -> list[Case]:
    cores = len(available_core_ids())
    found = [
        Case("perceptron", "64 decisions, CartPole", lambda: work.perceptron(work.cartpole(), 64)),
        Case("perceptron", "256 decisions, HalfCheetah", lambda: work.perceptron(work.cheetah(), 256)),
        Case(
            "perceptron",
            "ddppo, 64 CartPoles, processor time",
            lambda: work.training("perceptron", task="CartPole-v1", cpu=True),
            True,
        ),
        Case("send first", "ddppo, 64 HalfCheetahs", lambda: work.training("send first", task="HalfCheetah-v4"), True),
        Case("perceptrons together", "appo, 64 CartPoles, 8 policies, processor time", _eight_policies, True),
        Case("ELU by exp", "1,048,576 numbers trained, bfloat16", lambda: _as_written(work.elu())),
        Case("ELU by exp", "Sample Factory's CNN, 256 images trained", _elu),
        Case("LSTM layer by layer", "LSTM of 512, 8 columns of 32 steps trained", lambda: _two(work.memory)),
        Case(
            "one thread",
            f"64 decisions, CartPole, against {cores} threads",
            lambda: work.threads_of(_decisions(), cores),
        ),
        Case(
            "one thread",
            f"2,048 rows trained, CartPole, against {cores} threads",
            lambda: work.threads_of(_rows(), cores),
        ),
        Case("LSTM layer by layer", "against 8 packed sequences of 32", lambda: work.against_packed([32] * 8)),
        Case("LSTM layer by layer", "against 9, two of them shorter", lambda: work.against_packed([32] * 7 + [20, 12])),
        Case("one thread", f"making a policy, against {cores} threads", lambda: work.network_making(cores)),
        Case("no oneDNN", "64 decisions, CartPole", lambda: work.without_onednn(_decisions())),
        Case("no oneDNN", "2,048 rows trained, CartPole", lambda: work.without_onednn(_rows())),
        Case("channels last", "Nature CNN, 256 images trained", lambda: _channels_last(NatureCNN)),
        Case("channels last", "Sample Factory's CNN, 256 images trained", lambda: _channels_last(SampleFactoryConv)),
        Case(
            "freed memory kept",
            "Sample Factory's CNN, 1,024 images trained",
            lambda: work.cells("allocator", {"images": 1024}),
            True,
        ),
        Case("pinning", "64 HalfCheetahs in EnvPool, random actions", work.pinning),
        Case("pinning", "ddppo, 64 HalfCheetahs", lambda: work.training("pinning", task="HalfCheetah-v4"), True),
        Case("naps", "32 of 256 slots from 16 workers, steps of 2 ms", work.naps),
        Case("compiled D4PG update", "batches of 256, two layers of 256, one thread", work.compiled_update),
    ]
    found += arm_cases() if ON_ARM else []
    found += amx_cases() if has_amx() else []
    return found + (cuda_cases() if torch.cuda.is_available() else [])


def arm_cases() -> list[Case]:
    return [
        Case("tanh by NumPy", "2,048 rows trained, CartPole", lambda: _as_written(_rows())),
        Case("convolutions as matrix products", "Nature CNN, 256 images trained", _matrices),
    ]


def amx_cases() -> list[Case]:
    trained = "Nature CNN, 256 images trained"
    return [
        Case("bfloat16", trained, lambda: _two(lambda on: work.convolutions(NatureCNN, halved=on))),
        Case("bytes as they are", trained, lambda: _two(lambda on: _halved(scaled=not on))),
        Case("blocks of pixels", trained, lambda: work.blocks_of(NatureCNN)),
        Case("weights kept in bfloat16", "16 decisions, Nature CNN with an LSTM of 512", work.kept_precision),
    ]


def cuda_cases() -> list[Case]:
    memory = "2 layers of 512, 256 columns of 128 steps trained"
    breakout = {"device": "cuda", "task": "Breakout-v5", "rollout_steps": 32, "system": "appo"}
    poles = {"device": "cuda", "env": "tensor:cartpole", "num_envs": 1024}
    return [
        Case("LSTM layer by layer", memory, lambda: _two(lambda on: work.memory(on, "cuda"), wall)),
        Case("LSTM kernels by Triton", memory, work.memory_kernels),
        Case(
            "code by size",
            "gradient of a ResNet18, 4,096 images of 64x64, after decisions for 1,024",
            work.encoder_code,
        ),
        Case("CUDA graphs", "256 decisions, Nature CNN with an LSTM of 512", work.recorded_decision),
        Case("CUDA graphs", "D4PG update, batches of 256", work.recorded_update),
        Case("CUDA graphs", "ddppo, 1,024 batched CartPoles", lambda: work.training("cuda graphs", **poles), True),
        Case("recorded acting", "appo, 64 Breakouts", lambda: work.training("recorded acting", **breakout), True),
        Case("navigation kernels by Triton", "256 PointNav streams, depth 64x64", work.navigation),
    ]


def _two(make: Callable[[bool], work.Work], clock: work.Clock = time.process_time) -> Pair:
    """Two works, made without the acceleration and with it."""
    return Pair(*(timed(make(on), clock=clock) for on in (False, True)))


def _decisions() -> work.Work:
    policy = work.cartpole()
    return work.decision(policy, work.numbers(policy, 64))


def _rows() -> work.Work:
    return work.policy_update(work.cartpole(), 2048)


def _eight_policies() -> Pair:
    eight = {"system": "appo", "policies": 8, "rollout_steps": 32, "batch": 2048}
    return work.training("perceptrons together", task="CartPole-v1", cpu=True, **eight)


def _as_written(given: work.Work) -> Pair:
    return Pair(timed(given, activations.as_written), timed(given))


def _elu() -> Pair:
    return _as_written(work.convolutions(SampleFactoryConv))


def _channels_last(kind: type[NatureCNN | SampleFactoryConv]) -> Pair:
    return _two(lambda on: work.convolutions(kind, channels_last=on))


def _matrices() -> Pair:
    return _two(lambda on: work.convolutions(NatureCNN, as_matrices=on))


def _halved(scaled: bool) -> work.Work:
    return work.convolutions(NatureCNN, halved=True, scaled=scaled)


def run(quick: bool) -> Result:
    return measure(Plan(rounds=3, seconds=0.05, cell_rounds=1, cell_seconds=4.0) if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    if torch.cuda.is_available():
        facts["machine"] += f", {torch.cuda.get_device_name()}"
    print_context(facts)
    rows = []
    for case in cases():
        if plan.only and case.name not in plan.only:
            continue
        progress(f"{case.name}: {case.workload}")
        row = {"name": case.name, "workload": case.workload, "machine": facts["machine"]}
        try:
            rows.append(row | compare(case, plan))
        except Exception as error:  # the other rows are measured all the same
            rows.append(row | {"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        print(f"  {case.name}, {case.workload}: {shown(rows[-1])}", flush=True)
    progress("")
    table = print_table(
        "time without the acceleration / time with it: median and 95 % interval",
        ["acceleration", "workload", "ratio"],
        [[row["name"], row["workload"], shown(row)] for row in rows],
        name="gains",
    )
    return make_result("accelerations", facts, [table], measurements=rows)


def shown(row: dict[str, Any]) -> str:
    if "error" in row:
        return row["error"]
    low, high = row["interval"]
    return f"{row['ratio']:.2f} ({low:.2f} to {high:.2f})"


def compare(case: Case, plan: Plan) -> dict[str, Any]:
    """Ratios of two measurements that follow each other. Every second round begins with the other way."""
    pair = case.make()
    rounds, seconds = (plan.cell_rounds, plan.cell_seconds) if case.is_cell else (plan.rounds, plan.seconds)
    if not case.is_cell:
        for way in pair:  # the first time is slower
            way(seconds)
    ratios = []
    for number in range(rounds):
        if number % 2:
            fast, plain = pair.fast(seconds), pair.plain(seconds)
        else:
            plain, fast = pair.plain(seconds), pair.fast(seconds)
        ratios.append(plain / fast)
    return {"ratio": statistics.median(ratios), "interval": interval(ratios), "rounds": rounds}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """A 95 % interval of the median by order statistics; the whole range where there are few values."""
    ordered = sorted(values)
    cut = max(0, floor((len(ordered) - 1.96 * sqrt(len(ordered))) / 2))
    return ordered[cut], ordered[-1 - cut]


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__), context(f"python -m {__package__}.accelerations"))
