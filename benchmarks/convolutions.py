"""Images per second of the convolutional encoders on a CPU, trained on and inferred from: in float32 by PyTorch's convolutions
and as matrix products, and on CPUs with AMX in bfloat16, given bytes as they are and as scaled numbers.

Mini-batches of 256 are trained on, a forward and a backward pass; decisions are for 32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from torch import Tensor

from benchmarks.report import context, print_context, print_table
from paceline.accel.kernels import has_amx
from paceline.nets.encoders import ConvEncoder, NatureCNN, SampleFactoryConv, as_float
from paceline.pool.config import available_core_ids

ENCODERS = {
    "Nature, 84x84x4": (NatureCNN, (4, 84, 84)),
    "Sample Factory's, 128x72x3": (SampleFactoryConv, (3, 72, 128)),
}
TRAINED, DECIDED = 256, 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure."""

    seconds: float = 2.0
    """Each figure."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an encoder computes."""

    halved: bool = False
    """In bfloat16."""
    as_matrices: bool = False
    scaled: bool = False
    """Images are given as numbers, not as bytes."""


def measure(plan: Plan) -> None:
    print_context(context("python -m benchmarks.convolutions"))
    ways = {"float32": Way(), "float32, matrix products": Way(as_matrices=True)}
    if has_amx():
        ways |= {"bfloat16, scaled numbers": Way(halved=True, scaled=True), "bfloat16, bytes": Way(halved=True)}
    lines = []
    for threads in sorted({1, len(available_core_ids())}):
        torch.set_num_threads(threads)
        for name, (encoder, shape) in ENCODERS.items():
            for label, way in ways.items():
                trained, decided = rates(encoder(shape), shape, way, plan.seconds)
                lines.append([name, str(threads), label, f"{trained:,.0f}", f"{decided:,.0f}"])
    print_table("images per second", ["encoder", "threads", "way", "trained", "inferred"], lines)


def rates(module: ConvEncoder, shape: tuple[int, ...], way: Way, seconds: float) -> tuple[float, float]:
    """Images per second, trained on and inferred from."""
    module.as_matrices, module.channels_last = way.as_matrices, not way.as_matrices
    images = torch.randint(0, 256, (TRAINED, *shape), dtype=torch.uint8)

    def forward(images: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=way.halved, cache_enabled=False):
            return module(as_float(images) if way.scaled else images)

    def train() -> None:
        module.zero_grad()
        forward(images).float().square().mean().backward()

    @torch.no_grad()
    def decide() -> None:
        forward(images[:DECIDED])

    return TRAINED * per_second(train, seconds), DECIDED * per_second(decide, seconds)


def per_second(work: Callable[[], None], seconds: float) -> float:
    for _ in range(2):
        work()
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        work()
        count += 1
    return count / (time.perf_counter() - begin)


if __name__ == "__main__":
    measure(tyro.cli(Plan, description=__doc__))
