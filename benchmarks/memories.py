"""An LSTM of 512 units on a CPU, in training and in inference: rows per second of every implementation.

Training is a forward and a backward pass over 8 slots of 32 steps; inference is one step of 16 slots. Training goes
step by step, layer by layer (`--compute.layer-by-layer`), or over packed sequences with PyTorch's own module. Each is
measured in float32 with and without oneDNN and, on CPUs with AMX, in bfloat16 with weights that are converted at
every call or kept in bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paceline.accel.kernels import has_amx
from paceline.nets.config import CoreConfig
from paceline.nets.cores import Core
from paceline.pool.config import available_core_ids

from .convolutions import Plan, per_second
from .report import Result, command_line, make_result, print_context, print_table

FEATURES = HIDDEN = 512
TURNS, COLUMNS, DECIDED = 32, 8, 16


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the layer computes."""

    precision: torch.dtype = torch.float32
    onednn: bool = True
    kept: bool = False
    """Whether its weights are stored in that precision. Such a layer is for inference only."""


def measure(plan: Plan, facts: dict[str, Any]) -> Result:
    print_context(facts)
    ways = {"float32": Way(), "float32, without oneDNN": Way(onednn=False)}
    if has_amx():
        ways["bfloat16"] = Way(precision=torch.bfloat16)
        ways["bfloat16, weights too"] = Way(precision=torch.bfloat16, kept=True)
    lines = []
    for threads in sorted({1, len(available_core_ids())}):
        torch.set_num_threads(threads)
        for label, way in ways.items():
            torch.backends.mkldnn.set_flags(_enabled=way.onednn)
            core = Core(FEATURES, CoreConfig(kind="lstm", hidden=HIDDEN)).to(way.precision if way.kept else None)
            trained = ["-"] * 3 if way.kept else [f"{rate:,.0f}" for rate in training_rates(core, way, plan.seconds)]
            decided = DECIDED * per_second(decision(core, way), plan.seconds)
            lines.append([label, str(threads), *trained, f"{decided:,.0f}"])
    training = ["training, step by step", "training, layer by layer", "training, packed"]
    columns = ["implementation", "threads", *training, "inference"]
    table = print_table("Rows per second of an LSTM of 512 units", columns, lines, name="lstm")
    return make_result("memories", facts, [table])


def training_rates(core: Core, way: Way, seconds: float) -> list[float]:
    """Rows per second step by step, layer by layer and packed."""
    features = torch.randn(TURNS, COLUMNS, FEATURES, requires_grad=True)
    state, starts = torch.zeros(COLUMNS, core.state_size), torch.zeros(TURNS, COLUMNS, dtype=torch.bool)
    sizes = torch.full((TURNS,), COLUMNS)

    def train(remember: Callable[[], Tensor]) -> None:
        core.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=way.precision == torch.bfloat16, cache_enabled=False):
            out = remember()
        out.float().square().mean().backward()

    def scan(layer_by_layer: bool) -> Tensor:
        core.layer_by_layer = layer_by_layer
        return core.scan(features, starts, state)

    remembering: list[Callable[[], Tensor]] = [
        lambda: scan(False),
        lambda: scan(True),
        lambda: core.sequence(features.flatten(0, 1), sizes, state),
    ]
    return [TURNS * COLUMNS * per_second(partial(train, remember), seconds) for remember in remembering]


def decision(core: Core, way: Way) -> Callable[[], None]:
    features, state = torch.randn(DECIDED, FEATURES), torch.zeros(DECIDED, core.state_size)

    @torch.no_grad()
    def decide() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=way.precision == torch.bfloat16, cache_enabled=False):
            core.step(features, state)

    return decide


if __name__ == "__main__":
    command_line("memories", Plan, measure, __doc__)
