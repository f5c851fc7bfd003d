"""Convolutional encoders on a CPU, in training and in inference: images per second of every implementation.

The implementations are PyTorch's convolutions in float32, matrix products in float32 and, on CPUs with AMX, bfloat16
with byte images and with scaled float images. Training is a forward and a backward pass over 256 images; inference is
a forward pass over 32.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.accel.kernels import has_amx
from paceline.nets.encoders import ConvEncoder, NatureCNN, SampleFactoryConv, as_float
from paceline.pool.config import available_core_ids

from .report import Result, command_line, make_result, print_context, print_table

ENCODERS = {
    "Nature, 84x84x4": (NatureCNN, (4, 84, 84)),
    "Sample Factory's, 128x72x3": (SampleFactoryConv, (3, 72, 128)),
}
TRAINED, DECIDED = 256, 32


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of the benchmark."""

    seconds: float = 2.0
    """How long each figure is measured."""


@dataclass(frozen=True, kw_only=True)
class Way:
    """How an encoder computes its features."""

    halved: bool = False
    """Whether it computes in bfloat16."""
    as_matrices: bool = False
    scaled: bool = False
    """Whether images arrive as scaled floats instead of bytes."""


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    ways = {"float32, PyTorch": Way(), "float32, matrix products": Way(as_matrices=True)}
    if has_amx():
        ways |= {"bfloat16, scaled floats": Way(halved=True, scaled=True), "bfloat16, bytes": Way(halved=True)}
    lines = []
    for threads in sorted({1, len(available_core_ids())}):
        torch.set_num_threads(threads)
        for name, (encoder, shape) in ENCODERS.items():
            for label, way in ways.items():
                trained, decided = rates(encoder(shape), shape, way, plan.seconds)
                lines.append([name, str(threads), label, f"{trained:,.0f}", f"{decided:,.0f}"])
    columns = ["encoder", "threads", "implementation", "training", "inference"]
    table = print_table("Images per second of convolutional encoders", columns, lines, name="encoders")
    return make_result("convolutions", facts, [table])


def rates(module: ConvEncoder, shape: tuple[int, ...], way: Way, seconds: float) -> tuple[float, float]:
    """Images per second in training and in inference."""
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
    command_line("convolutions", Plan, measure, __doc__)
