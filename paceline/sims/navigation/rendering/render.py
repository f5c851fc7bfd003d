"""Camera images by ray casting against boxes, in tensors, on any device.

A camera looks horizontally. A ray is forward + u right + v up, and its parameter is the depth along the viewing
direction. So all pixels of a column share the ray's path over the floor, and all pixels of a row its height: the x and
y intervals of each box are computed per column, its z interval per row, and a pixel only compares the two. Walls reach
from floor to ceiling and need no rows.

The code reads no values and all shapes are fixed, so a CUDA graph can capture it. `render_triton` computes the same in
one kernel.

Legend: N cameras, H x W pixels, F walls, P parts, B = F + P boxes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.navigation.scenes.bank import SceneBank
from paceline.sims.navigation.scenes.geometry import FAR
from paceline.sims.navigation.scenes.scene import CEILING

CAMERA_HEIGHT = 1.25
MAX_DEPTH = 10.0
DEPTH_DTYPES = {"float32": torch.float32, "float16": torch.float16, "uint8": torch.uint8}
FACE_SHADES = (0.86, 0.72, 1.0)
"""Brightness of sides that face x, sides that face y, and horizontal sides."""
_NUDGE = 1e-9
"""Added to directions, so that none of them is zero."""
MISSED = 1e12
"""Scales the smallest difference beyond any depth. This is faster than a mask."""


class Camera:
    """The rays of a square image of `resolution` pixels a side: u from -1 to 1, v from `shift` + 1 to `shift` - 1.

    Without a shift the field of view is 90 degrees both ways. A shift moves the image up or down in its vertical plane,
    as the lens of a view camera does; the camera still looks horizontally. Depth ends at `max_depth` metres.
    """

    def __init__(
        self,
        resolution: int,
        device: str | torch.device = "cpu",
        *,
        height: float = CAMERA_HEIGHT,
        shift: float = 0.0,
        max_depth: float = MAX_DEPTH,
    ) -> None:
        self.resolution, self.height, self.shift, self.max_depth = resolution, height, shift, max_depth
        centers = (torch.arange(resolution, dtype=torch.float64) + 0.5) * (2.0 / resolution) - 1.0
        self.right = centers.float().to(device)
        """[W]: u of each column."""
        up = shift - centers
        self.up = up.float().to(device)
        """[H]: v of each row."""
        inverse_up = 1.0 / (up + _NUDGE)
        self.inverse_up = inverse_up.float().to(device)
        """[H]: 1 / v of each row."""
        self.planes = torch.maximum(-height * inverse_up, (CEILING - height) * inverse_up).float().to(device)
        """[H]: the depth of the floor or the ceiling in each row."""
        self.is_floor = (up < 0).to(device)
        """bool [H]."""
        self.shades = torch.tensor(FACE_SHADES, device=device)

    def row_of(self, slopes: Tensor) -> Tensor:
        """The rows, as fractions, whose rays have these slopes v."""
        return (self.shift + 1.0 - slopes).mul_(0.5 * self.resolution).sub_(0.5)


class View(NamedTuple):
    depth: Tensor
    """float32 [N, H, W]: depth as a share of the camera's `max_depth`, at most 1."""
    surfaces: Tensor | None
    """int64 [N, H, W]: 3 * box + face, of `FACE_SHADES`; the floor is box B, the ceiling B + 1."""


def trace(bank: SceneBank, camera: Camera, scenes: Tensor, poses: Tensor, surfaces: bool = False) -> View:
    """The views of cameras at `poses` [N, 3] (x, y, heading) in `scenes` [N]."""
    rects = bank.footprints[scenes] - poses[:, :2].repeat(1, 2)[:, None]
    near, far, sides = by_column(rects, *directions(camera, poses[:, 2]), surfaces)
    num_walls = bank.limits.max_walls
    walls, nearest = near[:, :num_walls].masked_fill(near[:, :num_walls] > far[:, :num_walls], FAR).min(1)
    depth = torch.minimum(walls[:, None, :], camera.planes[:, None])
    seen = backdrop(camera, bank.footprints.shape[1], walls, nearest, sides) if sides is not None else None
    low, high = (bank.heights[scenes].sub_(camera.height)[..., None] * camera.inverse_up).unbind(2)
    from_row, to_row = torch.minimum(low, high)[..., None], torch.maximum(low, high)[..., None]  # [N, P, H, 1]
    from_column, to_column = near[:, num_walls:, None], far[:, num_walls:, None]  # [N, P, 1, W]
    enter, leave = torch.empty_like(depth), torch.empty_like(depth)
    parts = zip(*(spans.unbind(1) for spans in (from_column, to_column, from_row, to_row)), strict=True)
    for part, (column_in, column_out, row_in, row_out) in enumerate(parts):  # one part at a time fits into the cache
        torch.maximum(column_in, row_in, out=enter)
        torch.minimum(column_out, row_out, out=leave)
        # A ray that leaves before it enters misses the box: the scaled difference moves it beyond all depths.
        torch.maximum(enter, torch.sub(enter, leave, out=leave).mul_(MISSED), out=enter)
        if seen is not None and sides is not None:
            box = num_walls + part
            face = torch.where(row_in > column_in, 2, sides[:, box, None])
            seen = torch.where(enter < depth, face + 3 * box, seen)
        torch.minimum(depth, enter, out=depth)
    return View(depth.mul_(1.0 / camera.max_depth).clamp_(max=1.0), seen)


def directions(camera: Camera, headings: Tensor) -> tuple[Tensor, Tensor]:
    """[N, W] each: the x and y components of each column's ray, per unit of depth, for `headings` [N]."""
    cos, sin = headings[:, None].cos(), headings[:, None].sin()
    return torch.addcmul(cos, sin, camera.right).add_(_NUDGE), torch.addcmul(sin, cos, camera.right, value=-1).add_(
        _NUDGE
    )


def by_column(rects: Tensor, along_x: Tensor, along_y: Tensor, sides: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """[N, B, W]: the depths where each column's ray enters and leaves each rectangle, and the side that it hits.

    `rects` [N, B, 4] are relative to the camera. The side is 0 if it faces x and 1 if it faces y.
    """
    x0, y0, x1, y1 = rects[..., None].unbind(2)
    over_x, over_y = along_x.reciprocal()[:, None], along_y.reciprocal()[:, None]
    a, b = x0 * over_x, x1 * over_x
    near_x, far_x = torch.minimum(a, b), torch.maximum(a, b, out=b)
    a, b = y0 * over_y, y1 * over_y
    near_y, far_y = torch.minimum(a, b), torch.maximum(a, b, out=b)
    side = (near_y > near_x).long() if sides else None
    # Boxes that begin behind the camera begin at depth 0: the camera is under a lintel, or the ray misses.
    return torch.maximum(near_x, near_y).clamp_(min=0.0), torch.minimum(far_x, far_y, out=far_x), side


def backdrop(camera: Camera, num_boxes: int, walls: Tensor, nearest: Tensor, sides: Tensor) -> Tensor:
    """int64 [N, H, W]: the surfaces of walls, floor and ceiling.

    `walls` [N, W] are the depths of the nearest walls, `nearest` int64 [N, W] their numbers.
    """
    wall = 3 * nearest + sides.gather(1, nearest[:, None])[:, 0]
    plane = torch.where(camera.is_floor, 3 * num_boxes + 2, 3 * num_boxes + 5)
    return torch.where(walls[:, None, :] < camera.planes[:, None], wall[:, None, :], plane[:, None])


def encode_depth(depth: Tensor, dtype: torch.dtype) -> Tensor:
    """[N, 1, H, W] of `dtype`; uint8 values are 255ths of MAX_DEPTH."""
    depth = depth[:, None]
    return depth.mul(255.0).round_().to(dtype) if dtype == torch.uint8 else depth.to(dtype)


def shade(bank: SceneBank, camera: Camera, scenes: Tensor, poses: Tensor, view: View) -> Tensor:
    """uint8 [N, 3, H, W]: colours, shaded by the side and slightly by distance. The floor has tiles."""
    return paint(bank.colors[scenes], bank.limits.max_walls + bank.limits.max_parts, camera, poses, view)


def paint(colors: Tensor, floor: int, camera: Camera, poses: Tensor, view: View) -> Tensor:
    """See `shade`. `colors` [N, boxes, 3] are those of all boxes by their numbers; the floor is box number `floor`."""
    assert view.surfaces is not None
    num, side = len(poses), camera.resolution
    box, face = view.surfaces // 3, view.surfaces % 3
    light = camera.shades[face] * (1.0 - 0.45 * view.depth)
    along_x, along_y = directions(camera, poses[:, 2])
    metres = view.depth * camera.max_depth
    tile_x = torch.addcmul(poses[:, 0, None, None], metres, along_x[:, None]).mul_(2.0).floor_()
    tile_y = torch.addcmul(poses[:, 1, None, None], metres, along_y[:, None]).mul_(2.0).floor_()
    dark = (view.surfaces == 3 * floor + 2) & ((tile_x + tile_y) % 2 == 1)
    light = light * torch.where(dark, 0.88, 1.0)
    seen = colors.float().gather(1, box.reshape(num, -1, 1).expand(-1, -1, 3)).view(num, side, side, 3)
    return (seen * light[..., None]).round_().to(torch.uint8).permute(0, 3, 1, 2).contiguous()
