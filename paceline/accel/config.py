"""How the arithmetic is done: options that change speed and rounding, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the arithmetic is done."""

    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Of the network's layers but the last, which give values and actions. Those, weights, losses, returns and the optimiser are float32
    in any case. bfloat16 pays on GPUs and on CPUs with instructions for it (AMX, AVX512-BF16, SVE-BF16), and is very slow on others.
    auto is bfloat16 for policies with convolutions on CPUs with AMX, and float32 otherwise."""
    compile: bool = False
    """Compile the encoders with torch.compile, and for policies without memory the losses too; of d4pg, on the CPU of a single
    rank, the whole update. Up to a minute at the start, fewer passes over memory after it. On a CPU it needs a C++ compiler."""
    layer_by_layer: bool = True
    """Go through an LSTM's columns layer by layer, with kernels of its own on a GPU: fewer and larger products."""
    cuda_graphs: bool = True
    """On a GPU, record decisions, gradient steps and batched simulators once and replay them: launching kernels one
    by one takes longer than running them."""

    def __post_init__(self) -> None:
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise UsageError(f"compute.precision {self.precision!r} does not exist; allowed: auto, float32, bfloat16")
