"""Settings of the arithmetic: they change speed and rounding, and nothing else. Free of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How the arithmetic is done."""

    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """Precision of all layers but the last ones, which give values and actions. Last layers, weights, losses, returns
    and the optimiser are always float32. bfloat16 is faster on GPUs and on CPUs with instructions for it (AMX,
    AVX512-BF16, SVE-BF16), and very slow on other CPUs. auto is bfloat16 for policies with convolutions on CPUs with
    AMX, and float32 otherwise."""
    compile: bool = False
    """Compile the encoders with torch.compile, and the losses of policies without memory. Of d4pg on the CPU of a
    single rank, compile the whole update. It takes up to a minute at the start. On a CPU it needs a C++ compiler."""
    layer_by_layer: bool = True
    """Go through an LSTM's columns layer by layer, with Triton kernels on a GPU: fewer and larger products."""
    cuda_graphs: bool = True
    """On a GPU, record decisions, gradient steps and batched simulators once and replay them. Launching kernels one by
    one takes longer than running them."""

    def __post_init__(self) -> None:
        if self.precision not in ("auto", "float32", "bfloat16"):
            raise UsageError(f"compute.precision {self.precision!r} does not exist; allowed: auto, float32, bfloat16")
