"""Exact distances between segments, points and upright boxes, in batches.

An upright box is (cx, cy, cz, ex, ey, ez, yaw): its centre, its half extents, and its rotation about z.

Legend: N robots, L segments, B boxes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Vectors = Sequence[Tensor]
"""Vectors by their components."""
_TINY = 1e-9


def segment_distances(starts: Tensor, ends: Tensor, boxes: Tensor) -> Tensor:
    """[N, L, B]: the distances of segments from `starts` to `ends` [N, L, 3] to `boxes` [N, B, 7]; 0 if they meet."""
    return _nearest(*_in_frames(starts[:, :, None], (ends - starts)[:, :, None], boxes[:, None]))


def capsule_depths(starts: Tensor, ends: Tensor, radii: Tensor, boxes: Tensor, counted: Tensor) -> Tensor:
    """[N]: how deep the capsules around segments are in the boxes at most, with the `radii` [L]; at least 0.

    Only the pairs in `counted` (bool [N, L, B]) count.
    """
    half, middle = (ends - starts) * 0.5, (starts + ends) * 0.5
    around = boxes[:, None]
    # A sphere around the capsule tells which pairs can touch. Only those are looked at.
    reach = _lengths(_outsides(_turned(middle[:, :, None] - around[..., :3], around), around))
    near = (reach < radii[:, None] + half.norm(dim=2, keepdim=True)).logical_and_(counted)
    robot, link, box = near.nonzero().unbind(1)
    distances = _nearest(*_in_frames(starts[robot, link], (ends - starts)[robot, link], boxes[robot, box]))
    return torch.zeros_like(starts[:, 0, 0]).scatter_reduce_(0, robot, radii[link] - distances, "amax")


def point_distances(points: Tensor, boxes: Tensor) -> Tensor:
    """[N, B]: the distances of `points` [N, 3] from `boxes` [N, B, 7]; 0 inside."""
    return _lengths(_outsides(_turned(points[:, None] - boxes[..., :3], boxes), boxes))


def floor_distances(positions: Tensor, boxes: Tensor) -> Tensor:
    """[N, B]: the distances of `positions` [N, 2] from the footprints of `boxes` [N, B, 7]; 0 inside."""
    offsets = positions[:, None] - boxes[..., :2]
    return _lengths(_outsides(_turned(offsets, boxes), boxes))


def footprint_gaps(box: Tensor, boxes: Tensor) -> Tensor:
    """[N, B]: by how much the footprints of `box` [N, 7] and `boxes` [N, B, 7] are apart along the best of their axes;
    negative if they overlap. Both have four sides, so these axes decide."""
    dx, dy = boxes[..., 0] - box[:, None, 0], boxes[..., 1] - box[:, None, 1]
    one, others = (box[:, 3, None], box[:, 4, None]), (boxes[..., 3], boxes[..., 4])
    cos, sin = (boxes[..., 6] - box[:, None, 6]).cos().abs(), (boxes[..., 6] - box[:, None, 6]).sin().abs()
    gaps = []
    for yaw, (a, b), (c, d) in ((box[:, 6, None], one, others), (boxes[..., 6], others, one)):
        c_x, s_x = yaw.cos(), yaw.sin()
        gaps.append((dx * c_x + dy * s_x).abs() - a - (c * cos + d * sin))
        gaps.append((dy * c_x - dx * s_x).abs() - b - (c * sin + d * cos))
    return torch.maximum(torch.maximum(gaps[0], gaps[1]), torch.maximum(gaps[2], gaps[3]))


def gaps(box: Tensor, boxes: Tensor) -> Tensor:
    """[N, B]: the same for the whole boxes."""
    upright = (boxes[..., 2] - box[:, None, 2]).abs() - boxes[..., 5] - box[:, None, 5]
    return torch.maximum(footprint_gaps(box, boxes), upright)


def _nearest(first: Vectors, way: Vectors, extents: Vectors) -> Tensor:
    """The least distances from boxes around the origin, on segments that start at `first` and go on by `way`.

    Along a segment, the squared distance from a box is convex and piecewise quadratic. Its pieces meet where the
    segment crosses the planes of the box's sides. So the slopes at these places tell the piece with the minimum, where
    the slope is linear.
    """
    low, high = torch.zeros_like(first[0]), torch.ones_like(first[0])
    slope_low, slope_high = (_slope(first, way, extents, time) for time in (low, high))
    starts_nearest, ends_nearest = slope_low >= 0.0, slope_high <= 0.0
    for axis in range(3):
        step = torch.where(way[axis].abs() < _TINY, _TINY, way[axis])
        for side in (-extents[axis], extents[axis]):
            time = ((side - first[axis]) / step).clamp_(0.0, 1.0)
            slope = _slope(first, way, extents, time)
            falls = slope <= 0.0
            later, earlier = falls & (time > low), ~falls & (time < high)
            low, slope_low = torch.where(later, time, low), torch.where(later, slope, slope_low)
            high, slope_high = torch.where(earlier, time, high), torch.where(earlier, slope, slope_high)
    time = low - slope_low * (high - low) / (slope_high - slope_low).clamp_(min=_TINY)
    time = torch.where(ends_nearest, 1.0, torch.where(starts_nearest, 0.0, time))
    return _lengths([_outside(p + time * d, extent) for p, d, extent in zip(first, way, extents, strict=True)])


def _in_frames(starts: Tensor, ways: Tensor, boxes: Tensor) -> tuple[Vectors, Vectors, Vectors]:
    """Segments [..., 3] as seen from boxes [..., 7]: where they start, how they go on, and the boxes' half extents."""
    first, way = _turned(starts - boxes[..., :3], boxes), _turned(ways, boxes)
    return first, way, boxes[..., 3:6].unbind(-1)


def _turned(vectors: Tensor, boxes: Tensor) -> Vectors:
    """The components of `vectors` [..., 2 or 3] along the axes of `boxes` [..., 7]."""
    cos, sin = boxes[..., 6].cos(), boxes[..., 6].sin()
    x, y, *up = vectors.unbind(-1)
    return [cos * x + sin * y, cos * y - sin * x, *up]


def _outsides(offsets: Vectors, boxes: Tensor) -> Vectors:
    return [_outside(offset, boxes[..., 3 + axis]) for axis, offset in enumerate(offsets)]


def _outside(offset: Tensor, extent: Tensor) -> Tensor:
    """How far offsets are beyond -extent or extent, with their sign; 0 between them."""
    return offset - torch.minimum(torch.maximum(offset, -extent), extent)


def _slope(first: Vectors, way: Vectors, extents: Vectors, time: Tensor) -> Tensor:
    """Half the derivative of the squared distance."""
    parts = [d * _outside(p + time * d, extent) for p, d, extent in zip(first, way, extents, strict=True)]
    return parts[0] + parts[1] + parts[2]


def _lengths(parts: Vectors) -> Tensor:
    return torch.stack([part.square() for part in parts]).sum(0).sqrt_()
