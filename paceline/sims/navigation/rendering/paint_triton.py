"""`render.paint` as one Triton kernel: every pixel is read once and written once.

Legend: as in `render`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.sims.navigation.rendering.render import Camera, View
from paceline.sims.navigation.rendering.render_triton import rounded

_PIXELS_PER_PROGRAM = 1024


def paint(
    colors: Tensor,
    floor: int,
    camera: Camera,
    scenes: Tensor,
    poses: Tensor,
    view: View,
    *,
    only: Tensor | None = None,
) -> Tensor:
    """See `render.paint`. `colors` [K, boxes, 3] are those of all scenes, and camera i is in scene `scenes[i]`. The
    images of cameras outside `only` (bool [N]) are whatever was in memory."""
    assert view.surfaces is not None and colors.dtype == torch.uint8
    num, side = len(poses), camera.resolution
    image = torch.empty(num, 3, side, side, dtype=torch.uint8, device=poses.device)
    _paint[(num, triton.cdiv(side * side, _PIXELS_PER_PROGRAM))](
        colors,
        scenes,
        poses.contiguous(),
        view.depth,
        view.surfaces,
        camera.right,
        camera.shades,
        only if only is not None else scenes,
        image,
        colors.shape[1],
        floor,
        side,
        camera.max_depth,
        HAS_ONLY=only is not None,
        BLOCK=_PIXELS_PER_PROGRAM,
        num_warps=4,
    )
    return image


@triton.jit
def _paint(
    colors,
    scenes,
    poses,
    depths,
    surfaces,
    right,
    shades,
    only,
    image,
    num_boxes,
    floor,
    side,
    max_depth,
    HAS_ONLY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    camera = tl.program_id(0).to(tl.int64)
    if HAS_ONLY:  # noqa: SIM102
        if tl.load(only + camera) == 0:
            return
    pixels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    area = side * side
    inside = pixels < area
    scene = tl.load(scenes + camera)
    x, y, heading = tl.load(poses + 3 * camera), tl.load(poses + 3 * camera + 1), tl.load(poses + 3 * camera + 2)
    cos, sin = tl.cos(heading), tl.sin(heading)
    u = tl.load(right + pixels % side, mask=inside, other=0.0)
    depth = tl.load(depths + camera * area + pixels, mask=inside, other=0.0)
    surface = tl.load(surfaces + camera * area + pixels, mask=inside, other=0).to(tl.int32)
    box, face = surface // 3, surface % 3
    metres = depth * max_depth
    tile_x = tl.floor((x + metres * (cos + sin * u + 1e-9)) * 2.0).to(tl.int32)
    tile_y = tl.floor((y + metres * (sin - cos * u + 1e-9)) * 2.0).to(tl.int32)
    is_dark = (surface == 3 * floor + 2) & (((tile_x + tile_y) & 1) == 1)
    light = tl.load(shades + face) * (1.0 - 0.45 * depth) * tl.where(is_dark, 0.88, 1.0)
    color = colors + (scene * num_boxes + box) * 3
    target = image + camera * 3 * area + pixels
    for channel in tl.static_range(3):
        value = tl.load(color + channel, mask=inside, other=0).to(tl.float32) * light
        tl.store(target + channel * area, rounded(value).to(tl.uint8), mask=inside)
