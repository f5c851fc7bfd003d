"""Random shifts of images (Yarats et al., "Mastering Visual Continuous Control", 2021, section 3.1).

Legend: B images, C channels, H and W their height and width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def shift_images(images: Tensor, offsets: Tensor, pad: int) -> Tensor:
    """[B, C, H, W]: each image padded by `pad` copies of its border pixels, and cropped to its own size.

    `offsets` [B, 2] int64 are the rows and columns, from 0 to 2 `pad`, where the crops begin. At `pad` an image stays
    as it is.
    """
    batch, channels, height, width = images.shape
    padded = images.new_empty(batch, channels, height + 2 * pad, width + 2 * pad)
    middle = padded[:, :, pad : pad + height]
    middle[..., pad : pad + width] = images
    middle[..., :pad], middle[..., pad + width :] = images[..., :1], images[..., -1:]
    padded[:, :, :pad], padded[:, :, pad + height :] = middle[:, :, :1], middle[:, :, -1:]
    # [B, C, 2 pad + 1, 2 pad + 1, H, W]: all crops, as a view.
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    return crops[torch.arange(batch, device=images.device), :, offsets[:, 0], offsets[:, 1]]
