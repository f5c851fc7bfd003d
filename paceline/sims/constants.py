"""Constants as tensors, made once for each device: a copy from the host cannot be recorded in a CUDA graph."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor


def constant(values: tuple[Any, ...], like: Tensor) -> Tensor:
    """`values`, which may be nested tuples, on the device and with the type of `like`. Not to be written to."""
    return _made(values, like.device, like.dtype)


@functools.cache  # never dropped, because recorded graphs use them
def _made(values: tuple[Any, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor(values, device=device, dtype=dtype)
