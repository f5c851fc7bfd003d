"""Distances against brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from paceline.sims.rearrangement.physics.shapes import (
    capsule_depths,
    floor_distances,
    footprint_gaps,
    gaps,
    point_distances,
    segment_distances,
)


def boxes(rng, *shape) -> torch.Tensor:
    parts = [rng.normal(size=(*shape, 3)), rng.uniform(0.02, 0.6, (*shape, 3)), rng.uniform(-4, 4, (*shape, 1))]
    return torch.from_numpy(np.concatenate(parts, -1))


def distance_of_point(point, box) -> float:
    x, y, z = point - box[:3]
    cos, sin = math.cos(box[6]), math.sin(box[6])
    offsets = (cos * x + sin * y, cos * y - sin * x, z)
    return math.sqrt(sum(max(abs(offset) - extent, 0.0) ** 2 for offset, extent in zip(offsets, box[3:6], strict=True)))


def corners(box) -> np.ndarray:
    cos, sin = math.cos(box[6]), math.sin(box[6])
    turn = np.array([[cos, -sin], [sin, cos]])
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    return np.asarray(box[:2]) + (signs * np.asarray(box[3:5])) @ turn.T


def do_overlap(one, other) -> bool:
    """By all edges of both footprints: an edge of a convex polygon separates them, or none does."""
    a, b = corners(one), corners(other)
    for first, second in ((a, b), (b, a)):
        for k in range(4):
            edge = first[(k + 1) % 4] - first[k]
            normal = np.array([edge[1], -edge[0]])
            if ((second - first[k]) @ normal).min() >= 0:
                return False
    return True


def test_points():
    rng = np.random.default_rng(1)
    points, some = torch.from_numpy(rng.normal(size=(20, 3))), boxes(rng, 20, 10)
    found = point_distances(points, some)
    for n in range(20):
        for b in range(10):
            assert float(found[n, b]) == pytest.approx(distance_of_point(points[n].numpy(), some[n, b].tolist()))


def test_segments_are_the_least_of_their_points():
    rng = np.random.default_rng(2)
    starts, some = torch.from_numpy(rng.normal(size=(40, 3, 3))), boxes(rng, 40, 12)
    ends = starts + torch.from_numpy(rng.normal(size=(40, 3, 3)))
    found = segment_distances(starts[:, :, None], ends[:, :, None], some[:, None])
    least = torch.full_like(found, torch.inf)
    for share in np.linspace(0, 1, 801):
        points = torch.lerp(starts, ends, float(share))
        least = torch.minimum(least, torch.stack([point_distances(points[:, k], some) for k in range(3)], 1))
    assert (found <= least + 1e-12).all()
    assert (least - found).max() < 1e-3, "the grid of points is coarse"
    assert (found == 0).any() and (found > 1).any()


def test_segments_along_an_axis_and_without_length():
    box = torch.tensor([[[0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]]])
    starts = torch.tensor([[[-3.0, 2.0, 0.0], [0.0, 0.0, 5.0], [0.5, 0.5, 0.5]]])
    ends = torch.tensor([[[3.0, 2.0, 0.0], [0.0, 0.0, 5.0], [0.5, 0.5, 9.0]]])
    assert segment_distances(starts[:, :, None], ends[:, :, None], box[:, None])[0, :, 0].tolist() == [1.0, 4.0, 0.0]


def test_capsules_are_as_deep_as_their_axes_are_near():
    rng = np.random.default_rng(3)
    starts, some = torch.from_numpy(rng.normal(size=(60, 3, 3))), boxes(rng, 60, 9)
    ends = starts + torch.from_numpy(rng.normal(size=(60, 3, 3))) * 0.3
    radii, counted = torch.tensor([0.1, 0.2, 0.05], dtype=torch.float64), torch.from_numpy(rng.random((60, 3, 9)) < 0.7)
    wanted = (radii[:, None] - segment_distances(starts[:, :, None], ends[:, :, None], some[:, None])).masked_fill(
        ~counted, 0.0
    )
    found = capsule_depths(starts, ends, radii, some, counted)
    torch.testing.assert_close(found, wanted.flatten(1).amax(1).clamp(min=0.0))
    assert (found > 0).any() and (found == 0).any()


def test_footprints_overlap_as_polygons_do():
    rng = np.random.default_rng(4)
    one, others = boxes(rng, 200), boxes(rng, 200, 5)
    found = footprint_gaps(one, others) < 0
    wanted = [[do_overlap(one[n].tolist(), others[n, b].tolist()) for b in range(5)] for n in range(200)]
    assert found.tolist() == wanted
    assert 0.1 < np.mean(wanted) < 0.9


def test_whole_boxes_also_need_to_meet_in_height():
    rng = np.random.default_rng(5)
    one, others = boxes(rng, 50), boxes(rng, 50, 5)
    apart = (others[..., 2] - one[:, None, 2]).abs() >= others[..., 5] + one[:, None, 5]
    assert ((gaps(one, others) < 0) == ((footprint_gaps(one, others) < 0) & ~apart)).all()


def test_distances_over_the_floor_ignore_heights():
    rng = np.random.default_rng(6)
    places, some = torch.from_numpy(rng.normal(size=(20, 2))), boxes(rng, 20, 7)
    flat = some.clone()
    flat[..., 2] = 0.0
    points = torch.cat((places, torch.zeros(20, 1, dtype=torch.float64)), 1)
    torch.testing.assert_close(floor_distances(places, some), point_distances(points, flat))
