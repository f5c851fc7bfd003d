"""Convolutions as matrix products, for CPUs on which these are faster: ARM.

Legend: B images, H x W pixels, C channels, K kernel size, O output channels.

Every window of K x K pixels becomes a row of a matrix, which is multiplied by the weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK = 64
"""Images at a time. Their windows take much more memory than they do, and are made twice rather than kept."""


def convolve(images: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """[B, H, W, C] contiguous images to [B, H', W', O]; `weight` [O, C, K, K] as of `nn.Conv2d`, no padding."""
    return _Convolution.apply(images, weight.permute(0, 2, 3, 1).flatten(1), bias, weight.shape[2], stride)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, size: int, stride: int) -> Tensor:
        height, width = ((side - size) // stride + 1 for side in images.shape[1:3])
        out = images.new_empty(len(images), height, width, len(weight))
        for first in range(0, len(images), CHUNK):
            rows = windows(images[first : first + CHUNK], size, stride)
            torch.addmm(bias, rows, weight.t(), out=out[first : first + CHUNK].view(len(rows), -1))
        ctx.save_for_backward(images, weight)
        ctx.size, ctx.stride = size, stride
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        images, weight = ctx.saved_tensors
        grad = grad.contiguous()
        to_weight = torch.zeros_like(weight)
        to_images = torch.zeros_like(images) if ctx.needs_input_grad[0] else None
        for first in range(0, len(images), CHUNK):
            part = slice(first, first + CHUNK)
            table = grad[part].view(-1, grad.shape[3])
            to_weight.addmm_(table.t(), windows(images[part], ctx.size, ctx.stride))
            if to_images is not None:
                _add_windows(to_images[part], (table @ weight).view(*grad[part].shape[:3], -1), ctx.size, ctx.stride)
        return to_images, to_weight, grad.sum((0, 1, 2)), None, None


def windows(images: Tensor, size: int, stride: int) -> Tensor:
    """[B * H' * W', K * K * C]: every window as a row."""
    batch, height, width, channels = images.shape
    by_image, by_row, by_column, by_channel = images.stride()
    shape = (batch, (height - size) // stride + 1, (width - size) // stride + 1, size, size, channels)
    strides = (by_image, by_row * stride, by_column * stride, by_row, by_column, by_channel)
    return images.as_strided(shape, strides, images.storage_offset()).reshape(-1, size * size * channels)


def _add_windows(images: Tensor, rows: Tensor, size: int, stride: int) -> None:
    """Add rows [B, H', W', K * K * C] to the pixels of their windows."""
    batch, height, width, _ = rows.shape
    parts = rows.view(batch, height, width, size, size, -1)
    for i in range(size):
        for j in range(size):
            down, right = i + stride * (height - 1) + 1, j + stride * (width - 1) + 1
            images[:, i:down:stride, j:right:stride] += parts[:, :, :, i, j]
