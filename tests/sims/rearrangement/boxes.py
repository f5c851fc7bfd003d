"""A reference for overlaps of upright boxes (cx, cy, cz, ex, ey, ez, yaw), by separating axes."""

import numpy as np


def of_scene(scene):
    """The boxes of a scene [B, 7]."""
    low, high = scene.boxes[:, [0, 1, 4]], scene.boxes[:, [2, 3, 5]]
    return np.column_stack([(low + high) / 2, (high - low) / 2, np.zeros(len(low))])


def corners(boxes):
    """[N, 4, 2]: the corners on the floor."""
    signs = np.array([(1, 1), (1, -1), (-1, -1), (-1, 1)])
    local = boxes[:, None, 3:5] * signs
    cos, sin = np.cos(boxes[:, 6, None]), np.sin(boxes[:, 6, None])
    turned = np.stack([cos * local[..., 0] - sin * local[..., 1], sin * local[..., 0] + cos * local[..., 1]], 2)
    return boxes[:, None, :2] + turned


def overlap(ones, others, tolerance=1e-5):
    """bool [N, M]: whether `ones` [N, 7] and `others` [M, 7] have more than `tolerance` of each axis in common."""
    height = np.abs(ones[:, None, 2] - others[None, :, 2]) - ones[:, None, 5] - others[None, :, 5]
    apart = height > -tolerance
    first, second = corners(ones), corners(others)
    for yaws, by_first in ((ones[:, 6], True), (others[:, 6], False)):
        for turn in (0.0, np.pi / 2):
            axes = np.column_stack([np.cos(yaws + turn), np.sin(yaws + turn)])
            if by_first:
                a = np.einsum("nck,nk->nc", first, axes)[:, None]
                b = np.einsum("mck,nk->nmc", second, axes)
            else:
                a = np.einsum("nck,mk->nmc", first, axes)
                b = np.einsum("mck,mk->mc", second, axes)[None]
            gap = np.maximum(a.min(2) - b.max(2), b.min(2) - a.max(2))
            apart |= gap > -tolerance
    return ~apart


def distances(points, boxes):
    """[P, N]: distances on the floor from `points` [P, 2] to boxes; 0 inside."""
    away = points[:, None] - boxes[None, :, :2]
    cos, sin = np.cos(boxes[:, 6]), np.sin(boxes[:, 6])
    local = np.stack([cos * away[..., 0] + sin * away[..., 1], cos * away[..., 1] - sin * away[..., 0]], 2)
    return np.linalg.norm(np.maximum(np.abs(local) - boxes[:, 3:5], 0.0), axis=2)
