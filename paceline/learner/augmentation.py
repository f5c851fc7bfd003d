"""`RandomShift`: DrQ-v2's augmentation of images in the transitions of an update."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from paceline.ops.random_shift import shift_images


class RandomShift:
    """Shifts every image by up to `pad` pixels. Each image has its own shift, the frames of a stack have the same.

    Shifts come from PyTorch's default generator, whose state is in checkpoints.
    """

    def __init__(self, images: Mapping[str, bool], pad: int) -> None:
        """`images` are the names of observations that are images, and whether their channels are last."""
        self._images, self._pad = images, pad

    def __call__(self, rows: dict[str, Tensor]) -> dict[str, Tensor]:
        """Columns of transitions, with the images in observations and next observations shifted."""
        shifted = {}
        for name, channels_last in self._images.items():
            for column in (f"obs/{name}", f"next_obs/{name}"):
                images = rows[column].movedim(3, 1) if channels_last else rows[column]
                offsets = torch.randint(2 * self._pad + 1, (len(images), 2), device=images.device)
                moved = shift_images(images, offsets, self._pad)
                shifted[column] = moved.movedim(1, 3) if channels_last else moved
        return rows | shifted
