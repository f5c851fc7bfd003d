"""Time to publish weights from the learner thread to the sampler: what APPO adds to an update and to an inference.

The learner publishes after every update. The sampler refreshes its weights before every inference; most refreshes
find nothing new. Figures are the microseconds until a call returns and, on an otherwise idle GPU, until its copies
are done. No thread waits for those copies.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces

from paceline.distributed.runtime import choose_device
from paceline.learner.publication import Publication
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.pool.protocol import PoolSpec

from .report import Result, command_line, context, make_result, print_context, print_table

NUMBERS = spaces.Box(-1, 1, (17,), np.float32)
POLICIES: dict[str, tuple[spaces.Space, PolicyConfig]] = {
    "64x64 perceptron": (NUMBERS, PolicyConfig(hidden=(64, 64))),
    "Nature CNN, 84x84x4": (spaces.Box(0, 255, (4, 84, 84), np.uint8), PolicyConfig(encoder="nature")),
    "Sample Factory's, 128x72x3, LSTM 512": (
        spaces.Box(0, 255, (3, 72, 128), np.uint8),
        PolicyConfig(encoder="sample_factory", core=CoreConfig(kind="lstm", hidden=512)),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU if there is one."""
    times: int = 500
    """Publications of each policy. Figures are their medians."""


@dataclass
class Spans:
    """Microseconds of many calls."""

    on_gpu: bool
    until_it_returns: list[float]
    until_it_is_done: list[float]

    def measure(self, call: Callable[[], object]) -> None:
        if not self.on_gpu:
            self._call(call)
            return
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._call(call)
        end.record()
        end.synchronize()
        self.until_it_is_done.append(1e3 * begin.elapsed_time(end))

    def _call(self, call: Callable[[], object]) -> None:
        since = time.perf_counter()
        call()
        self.until_it_returns.append(1e6 * (time.perf_counter() - since))

    def shown(self) -> str:
        sides = [self.until_it_returns, *([self.until_it_is_done] if self.on_gpu else [])]
        return " / ".join(f"{statistics.median(side):.1f}" for side in sides)


def run(quick: bool) -> Result:
    return measure(Plan(times=5 if quick else 500), context())


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    device = choose_device(plan.device)
    on_gpu = device.type == "cuda"
    lines, results = [], {}
    for name, (space, config) in POLICIES.items():
        spec = PoolSpec(observation_space=space, action_space=spaces.Discrete(6), num_envs=1)
        learned = ActorCritic(spec, config).to(device)
        megabytes = sum(tensor.nbytes for tensor in learned.state_dict().values()) / 1e6
        spans = measure_one(learned, plan.times, on_gpu)
        lines.append([name, f"{megabytes:.2f}", *(span.shown() for span in spans.values())])
        results[name] = {kind: statistics.median(span.until_it_returns) for kind, span in spans.items()}
    unit = "µs until it returns / until the GPU is done" if on_gpu else "µs"
    where = torch.cuda.get_device_name() if on_gpu else f"CPU, {torch.get_num_threads()} threads"
    table = print_table(
        f"Publication of weights ({unit}; {where})",
        ["policy", "megabytes", "publish", "refresh", "nothing new"],
        lines,
        name="publication",
    )
    return make_result("publication", facts, [table], note=f"Medians of {plan.times}.", measurements=results)


def measure_one(learned: ActorCritic, times: int, on_gpu: bool) -> dict[str, Spans]:
    publication = Publication(learned)
    reader = publication.reader(copy.deepcopy(learned))
    spans = {kind: Spans(on_gpu, [], []) for kind in ("publish", "refresh", "nothing_new")}
    for number in range(times + 3):
        if number == 3:  # the first three are slower: they touch memory and load kernels
            spans = {kind: Spans(on_gpu, [], []) for kind in spans}
        spans["publish"].measure(publication.publish)
        spans["refresh"].measure(reader.refresh)
        spans["nothing_new"].measure(reader.refresh)
    return spans


if __name__ == "__main__":
    command_line("publication", Plan, measure, __doc__)
