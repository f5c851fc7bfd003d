"""`Candidates`: the boxes in view of cameras, as a list.

Static and moving boxes are described alike: each in a frame with the camera at the origin and axes along the box's
sides.

Legend: N cameras, F walls, P parts (static boxes that are no walls), D moving boxes, M candidates.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.sims.navigation.rendering.render import Camera

_MARGIN = 1e-3
"""Boxes that miss the field of view by about so much, in metres, are kept. It is far more than rounding errors."""


class StaticBoxes(NamedTuple):
    """The boxes of K scenes. The tensors are those of navigation's `SceneBank`."""

    footprints: Tensor
    """[K, F + P, 4]: x0, y0, x1, y1, walls first."""
    heights: Tensor
    """[K, P, 2]: of the parts."""
    colors: Tensor
    """uint8 [K, F + P + 2, 3]: of the boxes, the floor and the ceiling."""
    counts: Tensor
    """int64 [K, 2 or more]: the number of walls, and of parts; the others are padding."""

    @classmethod
    def of(cls, bank: Any) -> StaticBoxes:
        """The boxes of a bank that has these tensors as attributes. The tensors are shared, not copied."""
        return cls(bank.footprints, bank.heights, bank.colors, bank.counts)

    def relative_footprints(self, scenes: Tensor, poses: Tensor, some: slice) -> Tensor:
        """[N, boxes, 4]: footprints of some boxes, relative to the cameras at `poses`."""
        return self.footprints[scenes, some] - torch.cat((poses[:, :2], poses[:, :2]), 1)[:, None]

    @property
    def max_walls(self) -> int:
        return self.footprints.shape[1] - self.heights.shape[1]

    @property
    def max_boxes(self) -> int:
        return self.footprints.shape[1]

    @property
    def first_moving(self) -> int:
        """The number of the first moving box. The floor and the ceiling come before it."""
        return self.footprints.shape[1] + 2


class Candidates(NamedTuple):
    cameras: Tensor
    """int64 [M]: the camera that may see the box; ascending."""
    numbers: Tensor
    """int64 [M]: of the box."""
    rects: Tensor
    """[M, 4]: x0, y0, x1, y1 relative to the camera, in the box's frame."""
    headings: Tensor
    """[M]: of the camera in that frame."""
    heights: Tensor
    """[M, 2]: z0 and z1 relative to the camera."""

    @classmethod
    def of(
        cls, static: StaticBoxes, camera: Camera, scenes: Tensor, poses: Tensor, boxes: Tensor, farthest: Tensor
    ) -> Candidates:
        """The parts and moving boxes in view of each camera. Those beyond `farthest` [N], in metres, are left out."""
        frames = torch.cat((_part_frames(static, scenes, poses), _moving_frames(boxes, poses)), 1)
        chosen = _in_view(frames, farthest).view(-1).nonzero()[:, 0]
        count, num_parts = frames.shape[1], frames.shape[1] - boxes.shape[1]
        cameras = torch.div(chosen, count, rounding_mode="floor")
        numbers = torch.arange(static.max_walls, static.max_walls + count, device=scenes.device)
        numbers[num_parts:] += static.first_moving - static.max_walls - num_parts
        rects, headings, heights = frames.view(-1, 7).index_select(0, chosen).split((4, 1, 2), 1)
        numbers = numbers.index_select(0, chosen - count * cameras)
        return cls(cameras, numbers, rects, headings[:, 0], heights - camera.height)


def _part_frames(static: StaticBoxes, scenes: Tensor, poses: Tensor) -> Tensor:
    """[N, parts, 7]: x0, y0, x1, y1, the camera's heading, z0 and z1."""
    first, count = static.max_walls, int(static.counts[scenes, 1].max())
    rects = static.relative_footprints(scenes, poses, slice(first, first + count))
    return torch.cat((rects, poses[:, None, 2:].expand(-1, count, -1), static.heights[scenes, :count]), 2)


def _moving_frames(boxes: Tensor, poses: Tensor) -> Tensor:
    """See `_part_frames`. `boxes` [N, D, 7] are turned about the camera until their sides are parallel to the axes."""
    away_x, away_y = (boxes[..., :2] - poses[:, None, :2]).unbind(2)
    yaw = boxes[..., 6]
    cos, sin = yaw.cos(), yaw.sin()
    middle = torch.stack((away_x * cos + away_y * sin, away_y * cos - away_x * sin), 2)
    size, z, half_height = boxes[..., 3:5], boxes[..., 2:3], boxes[..., 5:6]
    headings = (poses[:, 2:] - yaw)[..., None]
    return torch.cat((middle - size, middle + size, headings, z - half_height, z + half_height), 2)


def _in_view(frames: Tensor, farthest: Tensor) -> Tensor:
    """bool [N, boxes]: whether a circle around each rectangle reaches into the field of view, 45 degrees each way."""
    low, high, headings = frames[..., :2], frames[..., 2:4], frames[..., 4]
    x, y = (low + high).mul_(0.5).unbind(2)
    radius = (high - low).sum(2).mul_(0.5)
    cos, sin = headings.cos(), headings.sin()
    ahead, aside = x * cos + y * sin, x * sin - y * cos
    inside = torch.add(ahead - aside.abs_(), radius, alpha=math.sqrt(2.0))
    return torch.minimum(inside, farthest[:, None] + radius - ahead) > -_MARGIN
