"""A strided convolution of bytes as one without stride, in bfloat16: blocks of pixels become channels.

Legend: B images, C channels, H x W pixels, K kernel size, S stride, O output channels, P channels of a block.

Where K is a multiple of S, every window consists of whole blocks of S x S pixels. With the pixels of a block as its
channels, the convolution is one over windows of K/S x K/S blocks with stride 1. The products are the same, but over
many channels instead of one to four, as instructions that multiply whole tiles (AMX) need. Images that come with their
channels last are left as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TILE = 32
"""Channels of a tile. Blocks are padded with zeros to a multiple of it."""
WORDS = (torch.int32, torch.int16, torch.uint8)


def suits(images: Tensor, conv: nn.Conv2d) -> bool:
    """Whether images [B, C, H, W] are stored channel by channel, and they and the windows are whole blocks."""
    size, stride = conv.kernel_size[0], conv.stride[0]
    whole = stride > 1 and not any(side % stride for side in (size, *images.shape[2:]))
    return whole and images.is_contiguous()


def convolve(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int) -> Tensor:
    """Bytes [B, C, H, W] to [B, O, H', W'], channels last; `weight` [O, C, K, K] as of `nn.Conv2d`, no padding."""
    blocks = blocks_of(images, stride).to(torch.bfloat16)
    return F.conv2d(blocks.permute(0, 3, 1, 2), _weight_of_blocks(weight, stride, blocks.shape[3]), bias)


def blocks_of(images: Tensor, stride: int) -> Tensor:
    """[B, H/S, W/S, P]: the bytes of every block, channel by channel, and within a channel row by row."""
    batch, channels, height, width = images.shape
    size = (height // stride, width // stride)
    word = next(word for word in WORDS if not (stride % word.itemsize or images.storage_offset() % word.itemsize))
    words = images.view(batch, channels, size[0], stride, size[1], stride).view(word)
    blocks = words.new_zeros(batch, *size, -(-channels * stride**2 // TILE) * TILE // word.itemsize)
    parts = blocks[..., : channels * stride * words.shape[-1]].unflatten(-1, (channels, stride, -1))
    for row in range(stride):
        parts[..., row, :] = words[:, :, :, row].permute(0, 2, 3, 1, 4)
    return blocks.view(torch.uint8)


def _weight_of_blocks(weight: Tensor, stride: int, channels: int) -> Tensor:
    """[O, P, K/S, K/S]: the weights [O, C, K, K] in the order of `blocks_of`."""
    steps = weight.shape[2] // stride
    parts = weight.unflatten(3, (steps, stride)).unflatten(2, (steps, stride))  # [O, C, K/S, S, K/S, S]
    ordered = parts.permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
    return F.pad(ordered, (0, 0, 0, 0, 0, channels - ordered.shape[1]))
