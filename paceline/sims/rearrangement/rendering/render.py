"""Images from the robots' heads: navigation's ray casting, with moving boxes that are turned and with capsules.

As in navigation, all pixels of a column share the ray's path over the floor, and all pixels of a row its height. This
holds for a turned box too, in the box's frame. A column is compared with the boxes in view of its camera. The boxes in
its way and before its nearest wall are few. Only their rows are compared, as strips.

This version is for a CPU: it reads values to leave out what is not seen. `render_triton` computes the same in one
kernel.

Legend: N cameras, H x W pixels, D moving boxes, L capsules, M candidates, Q strips, R rows of a strip.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from paceline.sims.navigation.rendering.render import (
    MAX_DEPTH,
    MISSED,
    Camera,
    View,
    backdrop,
    by_column,
    directions,
    paint,
)
from paceline.sims.rearrangement.rendering.candidates import Candidates, StaticBoxes
from paceline.sims.rearrangement.rendering.capsules import capsule_layer
from paceline.sims.rearrangement.rendering.strips import Layer, Strips

ARM_COLOR = (214, 218, 226)
_PIXELS_AT_ONCE = 1 << 18
"""Cameras are rendered in groups of about so many pixels, which fit into the cache."""
_SHORT = 1e-6
"""Depths below are not divided by."""


def trace(
    static: StaticBoxes,
    camera: Camera,
    scenes: Tensor,
    poses: Tensor,
    boxes: Tensor,
    capsules: Tensor,
    surfaces: bool = False,
) -> View:
    """The views of cameras at `poses` [N, 3] (x, y, heading) in `scenes` [N].

    Each camera sees moving things of its own: `boxes` [N, D, 7] (cx, cy, cz, ex, ey, ez, yaw) and `capsules` [N, L, 7]
    (ax, ay, az, bx, by, bz, radius). Surfaces are numbered as in navigation. After the ceiling come the moving boxes,
    with faces in their own frames, and then the capsules, whose face is 0.
    """
    step = max(1, _PIXELS_AT_ONCE // camera.resolution**2)
    groups = [slice(first, first + step) for first in range(0, len(scenes), step)]
    views = [_trace(static, camera, scenes[g], poses[g], boxes[g], capsules[g], surfaces) for g in groups]
    if len(views) == 1:
        return views[0]
    seen = [view.surfaces for view in views if view.surfaces is not None]
    return View(torch.cat([view.depth for view in views]), torch.cat(seen) if surfaces else None)


def shade(
    static: StaticBoxes, camera: Camera, scenes: Tensor, poses: Tensor, view: View, colors: Tensor, num_capsules: int
) -> Tensor:
    """uint8 [N, 3, H, W]: see navigation's `shade`. `colors` uint8 [N, D, 3] are those of the moving boxes."""
    arm = colors.new_tensor(ARM_COLOR).expand(len(scenes), num_capsules, 3)
    return paint(torch.cat((static.colors[scenes], colors, arm), 1), static.max_boxes, camera, poses, view)


def _trace(
    static: StaticBoxes, camera: Camera, scenes: Tensor, poses: Tensor, boxes: Tensor, capsules: Tensor, surfaces: bool
) -> View:
    walls, behind = _walls(static, camera, scenes, poses, surfaces)
    found = Candidates.of(static, camera, scenes, poses, boxes, walls.amax(1))
    layers = (
        _box_layer(camera, found, walls, surfaces),
        capsule_layer(camera, poses, capsules, static.first_moving + boxes.shape[1]),
    )
    depth = torch.minimum(walls[:, None, :], camera.planes[:, None])
    is_behind = depth.clone() if surfaces else None
    for layer in layers:
        depth.view(-1).scatter_reduce_(0, layer.strips.pixels.view(-1), layer.depth.view(-1), "amin")
    seen = None
    if behind is not None and is_behind is not None:
        seen = torch.where(is_behind <= depth, behind, _nearest(depth, layers))
    return View(depth.mul_(1.0 / MAX_DEPTH).clamp_(max=1.0), seen)


def _walls(
    static: StaticBoxes, camera: Camera, scenes: Tensor, poses: Tensor, surfaces: bool
) -> tuple[Tensor, Tensor | None]:
    """The depth of the nearest wall in each column [N, W], and the surfaces of images of walls, floor and ceiling."""
    most = max(1, int(static.counts[scenes, 0].max()))
    rects = static.relative_footprints(scenes, poses, slice(most))
    near, far, sides = by_column(rects, *directions(camera, poses[:, 2]), surfaces)
    near = torch.maximum(near, (near - far).mul_(MISSED))
    if sides is None:
        return near.amin(1), None
    walls, nearest = near.min(1)
    return walls, backdrop(camera, static.max_boxes, walls, nearest, sides)


def _box_layer(camera: Camera, found: Candidates, walls: Tensor, surfaces: bool) -> Layer:
    """Parts and moving boxes, as far as they are before `walls` [N, W]."""
    side = camera.resolution
    spans = by_column(found.rects[:, None], *directions(camera, found.headings), surfaces)
    near, far, faces = (None if span is None else span.view(-1) for span in spans)
    assert near is not None and far is not None
    seen = near <= torch.minimum(far, walls.index_select(0, found.cameras).view(-1))
    index = seen.nonzero()[:, 0]
    which = torch.div(index, side, rounding_mode="floor")
    columns = index - (which - found.cameras.index_select(0, which)) * side
    near, far = near.index_select(0, index), far.index_select(0, index)
    low, high = found.heights.index_select(0, which).unbind(1)
    over = torch.stack((near, far)).clamp_(min=_SHORT).reciprocal_()
    strips = Strips.of(camera, columns, (low * over).amin(0), (high * over).amax(0))

    near, far, low, high = torch.stack((near, far, low, high)).index_select(1, strips.owners)
    inverse_up = strips.along_rows(camera.inverse_up)
    low, high = low * inverse_up, high * inverse_up
    from_row, to_row = torch.minimum(low, high), torch.maximum(low, high, out=high)
    enter = torch.maximum(near, from_row)
    leave = torch.minimum(far, to_row, out=to_row)
    # A ray that leaves before it enters misses the box: the scaled difference moves it beyond all depths.
    depth = torch.maximum(enter, torch.sub(enter, leave, out=leave).mul_(MISSED))
    codes = 3 * found.numbers.index_select(0, which.index_select(0, strips.owners))
    if faces is not None:
        codes = codes + torch.where(from_row > near, 2, faces.index_select(0, index).index_select(0, strips.owners))
    return Layer(strips, depth, codes)


def _nearest(depth: Tensor, layers: Iterable[Layer]) -> Tensor:
    """int64 [N, H, W]: the surfaces of the layers that are as near as `depth`. The lowest number counts."""
    none = torch.iinfo(torch.int64).max
    seen = torch.full(depth.shape, none, device=depth.device)
    for layer in layers:
        pixels = layer.strips.pixels
        codes = torch.where(layer.depth <= depth.take(pixels), layer.surfaces, none)
        seen.view(-1).scatter_reduce_(0, pixels.view(-1), codes.view(-1), "amin")
    return seen
