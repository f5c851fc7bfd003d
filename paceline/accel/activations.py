"""Activations that are faster than PyTorch's on a CPU.

On ARM NumPy computes tanh. An ELU uses exp instead of expm1, and its slope follows from its result without another exp.
Both differ from PyTorch by at most 2e-7. Small tensors, and GPUs, keep PyTorch's activations.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.accel.processor import ON_ARM

LEAST_FOR_TANH, LEAST_FOR_ELU = 512, 512 if ON_ARM else 65_536
"""Below this many numbers the overhead exceeds the gain."""
CHUNK = 131_072
"""Numbers per pass and thread: they stay in the processor's cache from one pass to the next."""

_as_written = ContextVar("as_written", default=False)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Inside this context activations are PyTorch's own: for tracing, and to measure the gain."""
    before = _as_written.set(True)
    try:
        yield
    finally:
        _as_written.reset(before)


class Tanh(nn.Module):
    """`nn.Tanh`."""

    def forward(self, x: Tensor) -> Tensor:
        if not ON_ARM or x.dtype != torch.float32 or x.numel() < LEAST_FOR_TANH or _is_left_to_torch(x):
            return x.tanh()
        return _FromResult.apply(x, by_numpy, torch.ops.aten.tanh_backward)


class ELU(nn.Module):
    """`nn.ELU` with an alpha of 1."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in (torch.float32, torch.bfloat16) or x.numel() < LEAST_FOR_ELU or _is_left_to_torch(x):
            return functional.elu(x)
        return _FromResult.apply(x, by_exp, _elu_backward)


def _is_left_to_torch(x: Tensor) -> bool:
    """Not on a CPU, or compiled or exported: then a compiler makes it fast."""
    return x.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing() or _as_written.get()


def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


def by_exp(x: Tensor) -> Tensor:
    """ELU(x), computed in float32: max(x, exp(min(x, 0)) - 1)."""
    x = x if x.is_contiguous(memory_format=layout_of(x)) else x.contiguous()
    y, size = torch.empty_like(x), CHUNK * torch.get_num_threads()
    scratch = x.new_empty(0 if x.dtype == torch.float32 else min(size, x.numel()), dtype=torch.float32)
    for part, out in zip(as_stored(x).split(size), as_stored(y).split(size), strict=True):
        found = scratch[: len(out)] if len(scratch) else out
        found.copy_(part).clamp_(max=0.0).exp_().sub_(1.0)
        torch.maximum(part, out if found is out else out.copy_(found), out=out)
    return y


def layout_of(x: Tensor) -> torch.memory_format:
    """Channels last for images that are stored pixel by pixel; contiguous otherwise."""
    by_pixel = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if by_pixel else torch.contiguous_format


def as_stored(x: Tensor) -> Tensor:
    """All numbers in one row, without a copy; x has the layout `layout_of(x)`."""
    return (x.permute(0, 2, 3, 1) if layout_of(x) == torch.channels_last else x).view(-1)


def _elu_backward(grad: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten.elu_backward(grad, 1.0, 1.0, 1.0, True, y)  # True: from the result, without another exp


class _FromResult(torch.autograd.Function):
    """A function whose gradient follows from its result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor], backward: Callable[..., Tensor]) -> Tensor:
        y = function(x)
        ctx.save_for_backward(y)
        ctx.through = backward
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.through(grad, *ctx.saved_tensors), None, None
