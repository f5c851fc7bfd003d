"""Activations, faster where PyTorch's own are slow.

On ARM PyTorch computes tanh at half the speed of NumPy: on a Neoverse-N1 (one thread) 45 us for 64 x 64 numbers against 22, and
170 us for 256 x 64 against 72. There NumPy computes it, which differs by at most 2e-7.

An ELU is computed by exp instead of expm1, with a difference of at most 2e-7: 323 us instead of 578 for 256 x 256 numbers on that
processor. For 4.3 million on a Xeon (one thread) it took 4.6 ms, in bfloat16 5.6, and PyTorch's 8.6 and 9.8, though on another
machine. Its slope follows from its result, without another exp: 1.4 ms instead of 4.3 in bfloat16, side by side. Of few numbers,
and on a GPU, it is PyTorch's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.accel.processor import ON_ARM

LEAST_FOR_TANH, LEAST_FOR_ELU = 512, 512 if ON_ARM else 65_536
"""Of fewer numbers than this, the way there takes longer than it saves."""
CHUNK = 131_072
"""Numbers at a time, of each of PyTorch's threads: from one pass to the next they stay in the processor's cache."""


_as_written = ContextVar("as_written", default=False)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Within, activations are PyTorch's own: for those who trace what is computed."""
    before = _as_written.set(True)
    try:
        yield
    finally:
        _as_written.reset(before)


def by_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.tanh(x.detach().numpy()))


class _ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = by_numpy(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.tanh_backward(grad, y)


class Tanh(nn.Module):
    """`nn.Tanh`."""

    def forward(self, x: Tensor) -> Tensor:
        if not ON_ARM or x.dtype != torch.float32 or x.numel() < LEAST_FOR_TANH or _is_left_alone(x):
            return x.tanh()
        return _ByNumpy.apply(x) if _needs_gradient(x) else by_numpy(x)


def by_exp(x: Tensor) -> Tensor:
    """ELU(x), computed in float32: where x is below 0, exp(x) - 1 is above it."""
    x = x if x.is_contiguous(memory_format=layout_of(x)) else x.contiguous()
    y, size = torch.empty_like(x), CHUNK * torch.get_num_threads()
    scratch = x.new_empty(0 if x.dtype == torch.float32 else min(size, x.numel()), dtype=torch.float32)
    for part, out in zip(as_stored(x).split(size), as_stored(y).split(size), strict=True):
        found = scratch[: len(out)] if len(scratch) else out
        found.copy_(part).clamp_(max=0.0).exp_().sub_(1.0)
        torch.maximum(part, out if found is out else out.copy_(found), out=out)
    return y


def layout_of(x: Tensor) -> torch.memory_format:
    """Of a batch of images that are laid out pixel by pixel, and of everything else."""
    by_pixel = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if by_pixel else torch.contiguous_format


def as_stored(x: Tensor) -> Tensor:
    """All numbers of a tensor in one row, without copying them; it has one of the layouts of `layout_of`."""
    return (x.permute(0, 2, 3, 1) if layout_of(x) == torch.channels_last else x).view(-1)


class _ByExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = by_exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return torch.ops.aten.elu_backward(grad, 1.0, 1.0, 1.0, True, y)  # of the result: without another exp


class ELU(nn.Module):
    """`nn.ELU` with an alpha of 1."""

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in (torch.float32, torch.bfloat16) or x.numel() < LEAST_FOR_ELU or _is_left_alone(x):
            return functional.elu(x)
        return _ByExp.apply(x) if _needs_gradient(x) else by_exp(x)


def _is_left_alone(x: Tensor) -> bool:
    """Whether another than a CPU computes it, or it is somebody else's to make fast: what is compiled or exported."""
    return x.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing() or _as_written.get()


def _needs_gradient(x: Tensor) -> bool:
    return x.requires_grad and torch.is_grad_enabled()
