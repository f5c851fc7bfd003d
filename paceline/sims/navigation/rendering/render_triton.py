"""`render.trace` as one Triton kernel: every image is computed in registers and written once.

A program computes all rows of some columns of one camera. It first finds the nearest wall of each column, and then
skips all boxes that are hidden or out of view in its columns, which are most of an apartment.

Legend: as in `render`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.sims.navigation.rendering.render import Camera, View
from paceline.sims.navigation.scenes.bank import SceneBank

_PIXELS_PER_PROGRAM = 2048


def trace(
    bank: SceneBank,
    camera: Camera,
    scenes: Tensor,
    poses: Tensor,
    surfaces: bool = False,
    *,
    only: Tensor | None = None,
    otherwise: View | None = None,
) -> View:
    """See `render.trace`. Cameras outside `only` (bool [N]) are not rendered: `otherwise` has their views."""
    num, side = len(scenes), camera.resolution
    depth = torch.empty(num, side, side, device=scenes.device)
    seen = torch.empty(num, side, side, dtype=torch.int64, device=scenes.device) if surfaces else None
    block_h = triton.next_power_of_2(side)
    block_w = min(block_h, max(1, _PIXELS_PER_PROGRAM // block_h))
    assert (only is None) == (otherwise is None)
    old_depth, old_seen = otherwise if otherwise is not None else (None, None)
    _trace[(num, triton.cdiv(side, block_w))](
        bank.footprints,
        bank.heights,
        bank.counts,
        scenes,
        poses.contiguous(),
        camera.right,
        camera.inverse_up,
        camera.planes,
        only if only is not None else scenes,
        old_depth if old_depth is not None else depth,
        old_seen if old_seen is not None else depth,
        depth,
        seen if seen is not None else depth,
        bank.limits.max_walls,
        bank.limits.max_parts,
        bank.counts.shape[1],
        side,
        camera.height,
        1.0 / camera.max_depth,
        HAS_ONLY=only is not None,
        SURFACES=surfaces,
        BLOCK_H=block_h,
        BLOCK_W=block_w,
        num_warps=4,
    )
    return View(depth, seen)


@triton.jit
def span(x0, y0, x1, y1, over_x, over_y):
    """The depths where the columns' rays enter and leave a rectangle, and whether they hit a side that faces y.

    The rectangle is relative to the camera.
    """
    a, b = x0 * over_x, x1 * over_x
    near_x, far_x = tl.minimum(a, b), tl.maximum(a, b)
    a, b = y0 * over_y, y1 * over_y
    near_y, far_y = tl.minimum(a, b), tl.maximum(a, b)
    near = tl.maximum(tl.maximum(near_x, near_y), 0.0)
    return near, tl.minimum(far_x, far_y), (near_y > near_x).to(tl.int32)


@triton.jit
def _span_of(footprint, x, y, over_x, over_y):
    x0, y0 = tl.load(footprint) - x, tl.load(footprint + 1) - y
    x1, y1 = tl.load(footprint + 2) - x, tl.load(footprint + 3) - y
    return span(x0, y0, x1, y1, over_x, over_y)


@triton.jit
def draw_box(depth, seen, near, far, across_y, low, high, over_up, number, SURFACES: tl.constexpr):
    """`depth` and `seen` with one more box, whose heights `low` and `high` are relative to the camera."""
    at_low, at_high = low * over_up, high * over_up
    from_row, to_row = tl.minimum(at_low, at_high), tl.maximum(at_low, at_high)
    enter = tl.maximum(near[None, :], from_row[:, None])
    enter = tl.where(enter <= tl.minimum(far[None, :], to_row[:, None]), enter, 1e9)
    if SURFACES:
        face = tl.where(from_row[:, None] > near[None, :], 2, across_y[None, :])
        seen = tl.where(enter < depth, 3 * number + face, seen)
    return tl.minimum(depth, enter), seen


@triton.jit
def draw_scene(
    footprints,
    heights,
    counts,
    scene,
    x,
    y,
    over_x,
    over_y,
    over_up,
    plane,
    max_walls,
    max_parts,
    num_counts,
    camera_height,
    SURFACES: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """The depths of the nearest walls, the depths of all pixels, and their surfaces."""
    far_away = 1e9
    boxes = footprints + scene * (max_walls + max_parts) * 4
    num_walls = tl.load(counts + num_counts * scene).to(tl.int32)
    num_parts = tl.load(counts + num_counts * scene + 1).to(tl.int32)

    wall = tl.full([BLOCK_W], far_away, tl.float32)
    wall_seen = tl.zeros([BLOCK_W], tl.int32)
    for index in range(num_walls):
        near, far, across_y = _span_of(boxes + 4 * index, x, y, over_x, over_y)
        near = tl.where(near <= far, near, far_away)
        if SURFACES:
            wall_seen = tl.where(near < wall, 3 * index + across_y, wall_seen)
        wall = tl.minimum(wall, near)

    depth = tl.minimum(wall[None, :], plane[:, None])
    seen = tl.zeros([BLOCK_H, BLOCK_W], tl.int32)
    if SURFACES:
        # Rows that look down see the floor, whose number follows that of the last box.
        level = 3 * (max_walls + max_parts) + tl.where(over_up < 0, 2, 5)
        seen = tl.where(wall[None, :] < plane[:, None], wall_seen[None, :], level[:, None])
    for part in range(num_parts):
        near, far, across_y = _span_of(boxes + 4 * (max_walls + part), x, y, over_x, over_y)
        visible = (near <= far) & (near < wall)
        if tl.max(visible.to(tl.int32), axis=0) > 0:
            height = heights + (scene * max_parts + part) * 2
            low, high = tl.load(height) - camera_height, tl.load(height + 1) - camera_height
            depth, seen = draw_box(
                depth, seen, near, far, across_y, low, high, over_up, max_walls + part, SURFACES=SURFACES
            )
    return wall, depth, seen


@triton.jit
def _trace(
    footprints,
    heights,
    counts,
    scenes,
    poses,
    right,
    inverse_up,
    planes,
    only,
    old_depth,
    old_seen,
    new_depth,
    new_seen,
    max_walls,
    max_parts,
    num_counts,
    side,
    camera_height,
    scale,
    HAS_ONLY: tl.constexpr,
    SURFACES: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    camera = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    rows = tl.arange(0, BLOCK_H)
    inside = (rows < side)[:, None] & (columns < side)[None, :]
    pixels = camera * side * side + rows[:, None] * side + columns[None, :]
    if HAS_ONLY:  # noqa: SIM102
        if tl.load(only + camera) == 0:
            tl.store(new_depth + pixels, tl.load(old_depth + pixels, mask=inside), mask=inside)
            if SURFACES:
                tl.store(new_seen + pixels, tl.load(old_seen + pixels, mask=inside), mask=inside)
            return
    scene = tl.load(scenes + camera)
    x, y, heading = tl.load(poses + 3 * camera), tl.load(poses + 3 * camera + 1), tl.load(poses + 3 * camera + 2)
    cos, sin = tl.cos(heading), tl.sin(heading)
    u = tl.load(right + columns, mask=columns < side, other=0.0)
    over_x = 1.0 / (cos + sin * u + 1e-9)
    over_y = 1.0 / (sin - cos * u + 1e-9)
    over_up = tl.load(inverse_up + rows, mask=rows < side, other=1.0)
    plane = tl.load(planes + rows, mask=rows < side, other=0.0)
    _, depth, seen = draw_scene(
        footprints,
        heights,
        counts,
        scene,
        x,
        y,
        over_x,
        over_y,
        over_up,
        plane,
        max_walls,
        max_parts,
        num_counts,
        camera_height,
        SURFACES=SURFACES,
        BLOCK_H=BLOCK_H,
        BLOCK_W=BLOCK_W,
    )
    tl.store(new_depth + pixels, tl.minimum(depth * scale, 1.0), mask=inside)
    if SURFACES:
        tl.store(new_seen + pixels, seen, mask=inside)
