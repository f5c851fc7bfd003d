"""Memory of a long run with many environments: 1,024 CartPoles in worker processes for half an hour.

Memory is the proportional set size (PSS) of all processes of the run, sampled every ten seconds. Memory per
environment is the difference to a short run with few environments, divided by the difference in environments. It
includes rollouts and buffers, which grow with the environments. Growth is the slope of a line through the second half
of the samples.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil

from .cells import Watch, run_module
from .pool_cell import pss_megabytes
from .report import Result, command_line, context, make_result, print_context, print_table, progress

OPTIONS = {
    "env": "gym:CartPole-v1",
    "pool": "process",
    "lstm": 0,
    "hidden": 64,
    "rollout_steps": 32,
    "epochs": 1,
    "minibatches": 4,
    "threads": None,
}
FEW_ENVS = 64
FEW_ENVS_SECONDS = 20.0
START_SECONDS = 300.0
"""Time limit of a run, in addition to its seconds of training."""
PLOT = Path("soak.png")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    system: str = "appo"
    num_envs: int = 1024
    seconds: float = 1800.0
    sample_seconds: float = 10.0


class Sample(NamedTuple):
    seconds: float
    """Since the start of the run."""
    megabytes: float


def run(quick: bool) -> Result:
    return measure(Plan(seconds=20.0, sample_seconds=1.0) if quick else Plan(), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    few, _ = watch(plan, FEW_ENVS, min(FEW_ENVS_SECONDS, plan.seconds), min(1.0, plan.sample_seconds))
    samples, rate = watch(plan, plan.num_envs, plan.seconds, plan.sample_seconds)
    progress("")
    later = second_half(samples)
    total = statistics.median(sample.megabytes for sample in later)
    base = statistics.median(sample.megabytes for sample in second_half(few))
    per_env = (total - base) / (plan.num_envs - FEW_ENVS) * 2**20
    slope = growth(later)
    table = print_table(
        f"{plan.system}, {plan.num_envs:,} environments, {plan.seconds / 60:.1f} minutes",
        ["steps per second", "megabytes", f"with {FEW_ENVS}", "bytes per environment", "growth, kilobytes a minute"],
        [[f"{rate:,.0f}", f"{total:,.1f}", f"{base:,.1f}", f"{per_env:,.0f}", f"{slope * 60 * 1024:+,.1f}"]],
        name="memory",
    )
    plot(samples, plan)
    print(f"\nplot: {PLOT}")
    return make_result("soak", facts, [table], measurements={"samples": samples, "samples_with_few": few})


def watch(plan: Plan, num_envs: int, seconds: float, sample_seconds: float) -> tuple[list[Sample], float]:
    """Samples of the memory of one run, and its steps per second."""
    options = OPTIONS | {"system": plan.system, "num_envs": num_envs, "seconds": seconds}
    samples: list[Sample] = []
    begin = time.monotonic()

    def look(pid: int) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            samples.append(Sample(time.monotonic() - begin, pss_megabytes(psutil.Process(pid))))
            progress(f"{plan.system}, {num_envs} environments, {samples[-1].seconds:.0f} s")

    result = run_module(f"{__package__}.ppo_cell", options, seconds + START_SECONDS, Watch(sample_seconds, look))
    return samples, result["steps_per_second"]


def second_half(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The later half by time, without the last sample: the run may have been ending."""
    middle = samples[-1].seconds / 2
    return [sample for sample in samples[:-1] if sample.seconds >= middle]


def growth(samples: Sequence[Sample]) -> float:
    """Megabytes per second: the slope of a least-squares line."""
    seconds, megabytes = zip(*samples, strict=True)
    return float(np.polyfit(seconds, megabytes, 1)[0])


def plot(samples: Sequence[Sample], plan: Plan) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 4))
    axis.plot([s.seconds / 60 for s in samples], [s.megabytes for s in samples])
    axis.set(xlabel="minutes", ylabel="megabytes, all processes (PSS)", ylim=(0, None))
    axis.set_title(f"{plan.system}, {plan.num_envs:,} CartPoles in worker processes")
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(PLOT, dpi=120)


if __name__ == "__main__":
    command_line("soak", Plan, measure, __doc__)
