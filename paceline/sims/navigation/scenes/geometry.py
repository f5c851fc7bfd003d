"""Batched tests with rectangles on the floor: lines of sight, and steps that end at obstacles.

Legend: N streams, V targets, M rectangles as centres and half extents (cx, cy, ex, ey).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.navigation.scenes.free_space import CONTACT, REST

FAR = 1e9
"""A distance beyond any scene. It is finite, so that sums and products stay finite."""
NOWHERE = (1e6, 1e6, 1e6, 1e6)
"""A rectangle for padding, by its corners, far from every scene."""
_TINY = 1e-9


def boxed(rects: Tensor) -> Tensor:
    """Convert `rects` [..., 4] from corners (x0, y0, x1, y1) to centres and half extents (cx, cy, ex, ey)."""
    low, high = rects[..., :2], rects[..., 2:]
    return torch.cat(((low + high) / 2, (high - low) / 2), -1)


def is_blocked(origins: Tensor, targets: Tensor, rects: Tensor) -> Tensor:
    """bool [N, V]: whether the segment from `origins` [N, 2] to `targets` [N, V, 2] enters one of `rects` [N, M, 4].

    Touching a border does not count. The test uses separating axes: x, y and the normal of the segment. It does not
    divide, so no direction is special.
    """
    half = (targets - origins[:, None]).mul_(0.5)
    cx, cy, ex, ey = rects[:, None].unbind(-1)  # [N, 1, M]
    hx, hy = half[:, :, None].unbind(-1)  # [N, V, 1]
    middle_x, middle_y = (targets - half)[:, :, None].unbind(-1)
    mx, my = middle_x - cx, middle_y - cy  # [N, V, M]
    ax, ay = hx.abs(), hy.abs()
    across = (hx * my).addcmul_(hy, mx, value=-1.0).abs_()
    # Zero or more if some axis separates the two.
    excess = torch.maximum(across.sub_((ey * ax).addcmul_(ex, ay)), mx.abs_().sub_(ex + ax))
    return torch.maximum(excess, my.abs_().sub_(ey + ay), out=excess).amin(2) < 0.0


class Move(NamedTuple):
    """The result of a step."""

    position: Tensor
    """[N, 2]."""
    travelled: Tensor
    """[N]: the length of the path, including the part along the obstacle if the agent slid."""
    collided: Tensor
    """bool [N]."""


def move(position: Tensor, step: Tensor, rects: Tensor, slide: bool = True) -> Move:
    """Walk `step` [N, 2] from `position` [N, 2] up to the first of `rects` [N, M, 4], which are grown by CONTACT.

    With `slide`, the rest of the step goes along the side that was hit, up to the next rectangle.
    """
    sign = torch.ones_like(step).copysign_(step)  # never zero, also for a zero step
    centers, extents = rects[..., :2], rects[..., 2:]
    time, near = _first_contact(position, step, sign, centers, extents)
    collided = time < 1.0
    way = step * time.clamp_(max=1.0)[:, None]
    travelled = way.norm(dim=1)
    # The side that was hit is the one that was reached last.
    hit = (near >= near.flip(1)) & collided[:, None]
    position = torch.addcmul(position + way, sign, hit, value=CONTACT - REST)
    if not slide:
        return Move(position, travelled, collided)
    rest = (step - way).masked_fill_(hit, 0.0)
    time, _ = _first_contact(position, rest, sign, centers, extents)
    # One component of `rest` is zero, so the agent stops short along the other one.
    length = rest.abs().sum(1)
    allowed = torch.where(time < 1.0, length * time - (REST - CONTACT), length).clamp_(min=0.0)
    position = position.addcmul_(torch.where(hit, 0.0, sign), allowed[:, None])
    return Move(position, travelled.add_(allowed), collided)


def _first_contact(
    position: Tensor, step: Tensor, sign: Tensor, centers: Tensor, extents: Tensor
) -> tuple[Tensor, Tensor]:
    """The share of the step until the first hit [N] (FAR for never), and until the x and y sides are reached [N, 2]."""
    ahead = (centers - position[:, None]).mul_(sign[:, None])
    speed = step.abs().clamp_(min=_TINY)[:, None]
    near, far = ahead - extents, ahead.add_(extents)
    # A position slightly inside, by rounding, counts as on the border and cannot enter further.
    near = torch.where(near > CONTACT - REST, near.relu(), -FAR).div_(speed)
    enter = near.amax(2)
    missed = (enter >= far.div_(speed).amin(2)).logical_or_(enter < 0.0)
    time, which = enter.masked_fill_(missed, FAR).min(1)
    return time, near.gather(1, which[:, None, None].expand(-1, 1, 2))[:, 0]
