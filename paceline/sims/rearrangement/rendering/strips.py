"""`Strips`: the pixels where a thing can be seen, as short vertical strips.

A thing covers few pixels of an image, and other pixels in each image. The strips of all images form one rectangular
tensor. It has the strips in its last dimension, so that what is known per strip needs no copies.

Legend: N cameras, H x W pixels, T columns that things can cover, Q strips, R rows of a strip.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.navigation.rendering.render import Camera

_ROWS = 8


class Strips(NamedTuple):
    owners: Tensor
    """int64 [Q]: the column, of T, that each strip belongs to."""
    rows: Tensor
    """int64 [R, Q]. The last row may be there repeatedly."""
    pixels: Tensor
    """int64 [R, Q]: the index into images [N, H, W], flat."""

    @classmethod
    def of(cls, camera: Camera, columns: Tensor, lowest: Tensor, highest: Tensor) -> Strips:
        """Strips of `columns` int64 [T] (camera * W + column) that cover all slopes from `lowest` to `highest` [T]."""
        side = camera.resolution
        # Rounding outwards makes up for rounding errors.
        first = camera.row_of(highest).clamp_(0, side).long()
        last = camera.row_of(lowest).ceil_().clamp_(-1, side - 1).long()
        counts = torch.div((last - first).add_(_ROWS).clamp_(min=0), _ROWS, rounding_mode="floor")
        owners = torch.repeat_interleave(counts)
        # The pixel in row 0 of each column.
        top = torch.div(columns, side, rounding_mode="floor").mul_(side * (side - 1)).add_(columns)
        # A strip's number, less the number of strips of the columns before its own, is its place in its column.
        start = first.sub_(counts.cumsum(0).sub_(counts), alpha=_ROWS)
        start, last, top = torch.stack((start, last, top)).index_select(1, owners)
        start.add_(torch.arange(0, _ROWS * len(owners), _ROWS, device=owners.device))
        rows = torch.minimum(start + torch.arange(_ROWS, device=owners.device)[:, None], last)
        return cls(owners, rows, torch.add(top, rows, alpha=side))

    def along_rows(self, values: Tensor) -> Tensor:
        """[R, Q]: what `values` [H] are in the rows of the strips."""
        return values.index_select(0, self.rows.view(-1)).view(self.rows.shape)


class Layer(NamedTuple):
    """Things drawn into strips."""

    strips: Strips
    depth: Tensor
    """[R, Q]: in metres; beyond any scene where the ray misses the thing."""
    surfaces: Tensor
    """int64 [R, Q] or [Q]."""
