"""`render.trace` as one Triton kernel: every image is computed in registers and written once.

A program computes all rows of some columns of one camera, as in navigation. It skips boxes that are hidden or out of
view in its columns, and capsules that do not reach them.

Legend: as in `render`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from paceline.sims.navigation.rendering.render import MAX_DEPTH, Camera, View
from paceline.sims.navigation.rendering.render_triton import draw_box, draw_scene, span
from paceline.sims.rearrangement.rendering.candidates import StaticBoxes

_PIXELS_PER_PROGRAM = 1024
"""Half as many as in navigation: capsules need more registers."""


def trace(
    static: StaticBoxes,
    camera: Camera,
    scenes: Tensor,
    poses: Tensor,
    boxes: Tensor,
    capsules: Tensor,
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
        static.footprints,
        static.heights,
        static.counts,
        scenes,
        poses.contiguous(),
        boxes.contiguous(),
        capsules.contiguous(),
        camera.right,
        camera.up,
        camera.inverse_up,
        camera.planes,
        only if only is not None else scenes,
        old_depth if old_depth is not None else depth,
        old_seen if old_seen is not None else depth,
        depth,
        seen if seen is not None else depth,
        static.max_walls,
        static.heights.shape[1],
        static.counts.shape[1],
        boxes.shape[1],
        capsules.shape[1],
        side,
        camera.height,
        1.0 / MAX_DEPTH,
        HAS_ONLY=only is not None,
        SURFACES=surfaces,
        BLOCK_H=block_h,
        BLOCK_W=block_w,
        num_warps=4,
    )
    return View(depth, seen)


@triton.jit
def _reaches(f0, r0, f1, r1, radius, u, ray_length):
    """Which columns a capsule can be seen in, by its ends on the floor. 1 mm is for rounding errors."""
    reach = tl.where(tl.maximum(f0, f1) + radius > 0.0, radius + 1e-3, -1e9) * ray_length
    from_start, from_end = r0 - f0 * u, r1 - f1 * u
    return (tl.minimum(from_start, from_end) <= reach) & (tl.maximum(from_start, from_end) >= -reach)


@triton.jit
def _span_of_moving(box, x, y, heading_cos, heading_sin, u):
    """See navigation's `span`: the ray is turned into the frame of the box."""
    away_x, away_y = tl.load(box) - x, tl.load(box + 1) - y
    half_x, half_y, yaw = tl.load(box + 3), tl.load(box + 4), tl.load(box + 6)
    cos, sin = tl.cos(yaw), tl.sin(yaw)
    middle_x, middle_y = away_x * cos + away_y * sin, away_y * cos - away_x * sin
    ahead_x, ahead_y = heading_cos * cos + heading_sin * sin, heading_sin * cos - heading_cos * sin
    over_x = 1.0 / (ahead_x + ahead_y * u + 1e-9)
    over_y = 1.0 / (ahead_y - ahead_x * u + 1e-9)
    return span(middle_x - half_x, middle_y - half_y, middle_x + half_x, middle_y + half_y, over_x, over_y)


@triton.jit
def _seen_from(point, x, y, cos, sin, camera_height):
    """How far a point is ahead of the camera, to the right of it and above it."""
    away_x, away_y = tl.load(point) - x, tl.load(point + 1) - y
    return away_x * cos + away_y * sin, away_x * sin - away_y * cos, tl.load(point + 2) - camera_height


@triton.jit
def _root(square, linear, constant):
    """The lesser t with square t^2 - 2 linear t + constant = 0, or a number beyond any scene."""
    inside = linear * linear - square * constant
    return tl.where(inside >= 0.0, (linear - tl.sqrt(tl.maximum(inside, 0.0))) / square, 1e9)


@triton.jit
def _enter_capsule(f0, r0, z0, f1, r1, z1, radius, u, v):
    """The depths where rays enter a capsule, whose ends are seen from the camera."""
    f, r, z = f1 - f0, r1 - r0, z1 - z0
    length = tl.sqrt(f * f + r * r + z * z)
    scale = 1.0 / tl.maximum(length, 1e-9)
    f, r, z = f * scale, r * scale, z * scale
    before = f0 * f + r0 * r + z0 * z
    # From the camera to the axis, at a right angle, and to the nearest point of the axis.
    fa, ra, za = f0 - before * f, r0 - before * r, z0 - before * z
    place = tl.minimum(tl.maximum(-before, 0.0), length)
    fn, rn, zn = f0 + place * f, r0 + place * r, z0 + place * z
    squared = radius * radius

    ray = (1.0 + u * u)[None, :] + (v * v)[:, None]
    along = (f + r * u)[None, :] + (z * v)[:, None]
    across = (fa + ra * u)[None, :] + (za * v)[:, None]
    to_start = (f0 + r0 * u)[None, :] + (z0 * v)[:, None]
    to_end = to_start + length * along
    side = _root(tl.maximum(ray - along * along, 1e-9), across, fa * fa + ra * ra + za * za - squared)
    reached = side * along - before
    enter = tl.where((reached >= 0.0) & (reached <= length), side, 1e9)
    enter = tl.minimum(enter, _root(ray, to_start, f0 * f0 + r0 * r0 + z0 * z0 - squared))
    enter = tl.minimum(enter, _root(ray, to_end, f1 * f1 + r1 * r1 + z1 * z1 - squared))
    # What is behind the camera is not seen. A camera in a capsule sees it at depth 0.
    enter = tl.where(enter >= 0.0, enter, 1e9)
    return tl.where(fn * fn + rn * rn + zn * zn >= squared, enter, 0.0)


@triton.jit
def _trace(
    footprints,
    heights,
    counts,
    scenes,
    poses,
    moving,
    capsules,
    right,
    up,
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
    num_moving,
    num_capsules,
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
    v = tl.load(up + rows, mask=rows < side, other=0.0)
    over_up = tl.load(inverse_up + rows, mask=rows < side, other=1.0)
    wall, depth, seen = draw_scene(
        footprints,
        heights,
        counts,
        scene,
        x,
        y,
        1.0 / (cos + sin * u + 1e-9),
        1.0 / (sin - cos * u + 1e-9),
        over_up,
        tl.load(planes + rows, mask=rows < side, other=0.0),
        max_walls,
        max_parts,
        num_counts,
        camera_height,
        SURFACES=SURFACES,
        BLOCK_H=BLOCK_H,
        BLOCK_W=BLOCK_W,
    )
    ray_length = tl.sqrt(1.0 + u * u)
    first = max_walls + max_parts + 2  # after the floor and the ceiling
    for index in range(num_moving):
        box = moving + (camera * num_moving + index) * 7
        f, r, _ = _seen_from(box, x, y, cos, sin, camera_height)
        # The circle around most boxes, padding among them, is out of view or behind the walls.
        radius = tl.load(box + 3) + tl.load(box + 4)
        visible = _reaches(f, r, f, r, radius, u, ray_length) & (f - radius - 1e-3 < wall)
        if tl.max(visible.to(tl.int32), axis=0) > 0:
            near, far, across_y = _span_of_moving(box, x, y, cos, sin, u)
            visible = (near <= far) & (near < wall)
            if tl.max(visible.to(tl.int32), axis=0) > 0:
                low = tl.load(box + 2) - tl.load(box + 5) - camera_height
                high = tl.load(box + 2) + tl.load(box + 5) - camera_height
                depth, seen = draw_box(
                    depth, seen, near, far, across_y, low, high, over_up, first + index, SURFACES=SURFACES
                )
    for index in range(num_capsules):
        capsule = capsules + (camera * num_capsules + index) * 7
        f0, r0, z0 = _seen_from(capsule, x, y, cos, sin, camera_height)
        f1, r1, z1 = _seen_from(capsule + 3, x, y, cos, sin, camera_height)
        radius = tl.load(capsule + 6)
        visible = _reaches(f0, r0, f1, r1, radius, u, ray_length)
        if tl.max(visible.to(tl.int32), axis=0) > 0:
            enter = _enter_capsule(f0, r0, z0, f1, r1, z1, radius, u, v)
            if SURFACES:
                seen = tl.where(enter < depth, 3 * (first + num_moving + index), seen)
            depth = tl.minimum(depth, enter)

    tl.store(new_depth + pixels, tl.minimum(depth * scale, 1.0), mask=inside)
    if SURFACES:
        tl.store(new_seen + pixels, seen, mask=inside)
