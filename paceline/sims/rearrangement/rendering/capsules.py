"""Depths of capsules, in the pixels that each of them can cover.

A ray meets a capsule where it enters the cylinder around the axis, or where it enters the ball at one of the ends.

Legend: N cameras, H x W pixels, L capsules, T columns that capsules cover, Q strips, R rows of a strip.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sims.navigation.rendering.render import MISSED, Camera
from paceline.sims.navigation.scenes.geometry import FAR
from paceline.sims.rearrangement.rendering.strips import Layer, Strips

_MARGIN = 1e-3
"""Capsules that miss a column by less, in metres, are kept. It is far more than the rounding errors."""
_TINY = 1e-9
_UPRIGHT = 1.57
"""An angle just below a right angle."""
_ANYWHERE = 7.0
"""An angle of more than a full turn."""
_LEAST = 1e-18


def capsule_layer(camera: Camera, poses: Tensor, capsules: Tensor, first: int) -> Layer:
    """What `capsules` [N, L, 7] look like from cameras at `poses` [N, 3]. The first capsule has the number `first`."""
    side, count = camera.resolution, capsules.shape[1]
    ends, radius = _seen_from(camera, poses, capsules), capsules[..., 6].reshape(-1)
    grown = radius + _MARGIN
    # Distances from the vertical planes of the columns, times the length of a column's ray over the floor.
    away = torch.addcmul(ends[1, ..., None], ends[0, ..., None], camera.right, value=-1.0)  # [2, N L, W]
    grown_if_ahead = torch.where(ends[0].amax(0) + radius > 0.0, grown, -FAR)
    reach = grown_if_ahead[:, None] * (1.0 + camera.right * camera.right).sqrt_()
    index = (torch.maximum(away.amin(0), -away.amax(0)) <= reach).view(-1).nonzero()[:, 0]
    which = torch.div(index, side, rounding_mode="floor")
    columns = index - which * side
    # A column cuts only the part of the capsule whose axis is within its reach.
    near, far = away.view(2, -1).index_select(1, index)
    reach = reach.view(-1).index_select(0, index)
    part = (torch.stack((reach, -reach)) - near).mul_((far - near).add_(_TINY).reciprocal_()).clamp_(0.0, 1.0)
    lowest, highest = _slopes(ends.flatten(0, 1).index_select(1, which), part, grown.index_select(0, which))
    cameras = torch.div(which, count, rounding_mode="floor")
    strips = Strips.of(camera, cameras * side + columns, lowest, highest)
    which = which.index_select(0, strips.owners)
    right = camera.right.index_select(0, columns).index_select(0, strips.owners)
    depth = _enter(_forms(ends, radius).index_select(1, which), right, strips.along_rows(camera.up))
    return Layer(strips, depth, (which % count + first).mul_(3))


def _seen_from(camera: Camera, poses: Tensor, capsules: Tensor) -> Tensor:
    """[3, 2, N L]: how far both ends are ahead of the camera, to the right of it and above it."""
    x, y, z = capsules[..., :6].unflatten(2, (2, 3)).permute(3, 2, 0, 1)
    x, y = x - poses[:, 0, None], y - poses[:, 1, None]
    cos, sin = poses[:, 2:].cos(), poses[:, 2:].sin()
    return torch.stack((x * cos + y * sin, x * sin - y * cos, z - camera.height)).flatten(2)


def _slopes(ends: Tensor, part: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """[T] each: bounds of the slopes of rays that meet capsules between two shares `part` [2, T] of their axes."""
    start, end = ends.view(3, 2, -1).unbind(1)
    ahead, above = (torch.addcmul(start[axis], end[axis] - start[axis], part) for axis in (0, 2))
    angle = torch.atan2(above, ahead)
    share = radius / torch.hypot(ahead, above).clamp_(min=_TINY)
    half = share.clamp(max=1.0).asin_()
    # A capsule that passes close to the camera can be anywhere. Then the ways to its ends form a right angle or more,
    # or one of its balls reaches the camera.
    product = ahead[0] * ahead[1] + above[0] * above[1]
    half += _ANYWHERE * ((share.amax(0) >= 1.0) | (product < radius * radius))
    lowest, highest = (angle - half).amin(0), (angle + half).amax(0)
    return lowest.clamp_(-_UPRIGHT, _UPRIGHT).tan_(), highest.clamp_(-_UPRIGHT, _UPRIGHT).tan_()


def _forms(ends: Tensor, radius: Tensor) -> Tensor:
    """[18, N L]: what `_enter` knows of capsules."""
    start, end = ends.unbind(1)
    length = (end - start).norm(dim=0)
    axis = (end - start) / length.clamp(min=_TINY)
    before = (start * axis).sum(0)
    across = start - before * axis  # from the camera to the axis, at a right angle
    nearest = start + (-before).clamp_(min=0.0).minimum(length) * axis
    vectors = torch.stack((axis, across, start, end), 1)
    gaps = (torch.stack((across, start, end, nearest)) ** 2).sum(1) - radius * radius
    gaps[3] = gaps[3] >= 0.0
    half = 0.5 * length
    return torch.cat((vectors.flatten(0, 1), gaps, (before + half)[None], half[None]))


def _enter(forms: Tensor, right: Tensor, up: Tensor) -> Tensor:
    """[R, Q]: the depths where rays enter capsules. `forms` [18, Q], `right` [Q], `up` [R, Q]."""
    ahead, aside, above = forms[:12].unflatten(0, (3, 4))
    # Products of the rays (1, u, v) with the axis, the way to the axis, and the ways to both ends.
    products = torch.addcmul(torch.addcmul(ahead, aside, right)[:, None], above[:, None], up)  # [4, R, Q]
    ray = torch.addcmul(1.0 + right * right, up, up)
    along, linear = products[0], products[1:]
    # The cylinder and both balls are quadratic equations: square t^2 - 2 linear t + constant = 0.
    square = ray.expand(3, -1, -1).contiguous()
    square[0].addcmul_(along, along, value=-1.0).clamp_(min=_TINY)
    lacking = (square * forms[12:15, None]).addcmul_(linear, linear, value=-1.0)
    # Roots of negative numbers are not used, and those of zero are slow.
    depth = linear.sub_(lacking.clamp(max=-_LEAST).neg_().sqrt_()).div_(square)
    # Beyond the ends of the axis the cylinder does not count.
    beyond = (depth[0] * along).sub_(forms[16]).abs_().sub_(forms[17])
    torch.maximum(lacking[0], beyond, out=lacking[0])
    depth = torch.maximum(depth, lacking.mul_(MISSED), out=depth).amin(0)
    # What is behind the camera is not seen. A camera in a capsule sees it at depth 0.
    return torch.maximum(depth, depth * -MISSED, out=depth).mul_(forms[15])
