"""`CompiledBySize`: a function of a batch, compiled by torch.compile. The first batch sizes have code of their own.

torch.compile alone makes one piece of code for all sizes as soon as a second size comes, and acting and learning have
different sizes. On a GPU that code is slower: it keeps images in another layout than cuDNN wants. The gradient of a
ResNet18 takes a third longer. The gradient of GroupNorm in an SE-ResNeXt50 even fails with "misaligned address"
(PyTorch 2.11, images of 256x256).

With `channels_last`, code with gradients lays images out pixel by pixel. torch.compile decides that by itself, and
decides against it wherever a convolution is grouped. An SE-ResNeXt50 learns faster with it
(docs/benchmarks/navigation.md). The code without gradients stays as torch.compile wants it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

OWN_CODE = 2
"""Batch sizes with code of their own, with gradients and without. Compiling takes up to a minute for each."""


class CompiledBySize:
    """`function`, compiled. `size_of` is the batch size of its arguments."""

    def __init__(
        self, function: Callable[..., Any], size_of: Callable[..., int], *, channels_last: bool = False
    ) -> None:
        self._function, self._size_of = function, size_of
        options: dict[str, Any] | None = {"force_layout_optimization": True} if channels_last else None
        self._for_a_size = {
            True: torch.compile(function, dynamic=False, options=options),
            False: torch.compile(function, dynamic=False),
        }
        """With gradients, and without."""
        self._for_any_size = torch.compile(function)
        self._sizes: dict[bool, set[int]] = {True: set(), False: set()}
        """Those with code of their own, with gradients and without."""

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling():  # inside a larger function that is compiled as a whole
            return self._function(*arguments)
        learns = torch.is_grad_enabled()
        size, sizes = self._size_of(*arguments), self._sizes[learns]
        if len(sizes) < OWN_CODE:
            sizes.add(size)
        return (self._for_a_size[learns] if size in sizes else self._for_any_size)(*arguments)
