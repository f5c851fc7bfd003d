"""Where the base stands for a target: the stand of the bank first, then others around the target.

Legend: R robots, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from paceline.sims.rearrangement.evaluation.oracle.phases import RobotView
from paceline.sims.rearrangement.physics.shapes import floor_distances
from paceline.sims.rearrangement.physics.world import moving_boxes
from paceline.sims.rearrangement.robot.body import RADIUS
from paceline.sims.rearrangement.tasks.protocol import row

DISTANCES = (0.45, 0.5, 0.55, 0.6, 0.65)
NUM_ANGLES = 24
MARGIN = 0.02
_NEVER = 1e3


def stands_of(bank: Any, numbers: Callable[[RobotView], Tensor], targets: Callable[[RobotView], Tensor]) -> Any:
    """From R robots to their stands [R, 3]. `numbers` gives the rows in the bank's stands, `targets` the places."""

    def stands(view: RobotView) -> Tensor:
        first = bank.stands[view.scenes, view.episodes, numbers(view)]
        others = around(view, targets(view)[:, :2], first)
        return torch.where((view.notes.attempt == 0)[:, None], first, others)

    return stands


def around(view: RobotView, targets: Tensor, first: Tensor) -> Tensor:
    """[R, 3]: free poses around `targets` [R, 2] that face them; another one in every attempt."""
    device = targets.device
    angles = torch.arange(NUM_ANGLES, device=device) * (2 * math.pi / NUM_ANGLES)
    lengths = torch.tensor(DISTANCES, device=device)
    offsets = torch.stack((angles.cos(), angles.sin()), 1)[:, None] * lengths[:, None]  # [angles, lengths, 2]
    places = targets[:, None] + offsets.view(1, -1, 2)
    free = is_free(view, places)
    # The nearest free place first; the next attempts are away from the ones before.
    cost = (places - first[:, None, :2]).norm(dim=2) + torch.where(free, 0.0, _NEVER)
    order = cost.argsort(1)
    number = ((view.notes.attempt - 1).clamp(min=0) * len(DISTANCES)).clamp(max=order.shape[1] - 1)
    chosen = row(places, order.gather(1, number[:, None])[:, 0])
    usable = free.any(1)[:, None]
    way = targets - chosen
    pose = torch.cat((chosen, torch.atan2(way[:, 1:], way[:, :1])), 1)
    return torch.where(usable, pose, first)


def is_free(view: RobotView, places: Tensor, values: Tensor | None = None) -> Tensor:
    """bool [R, C]: whether the base can stand at `places` [R, C, 2], with doors and drawers as they are, or at `values`
    [R, J]."""
    cx, cy, ex, ey = view.world.contact[:, None].unbind(3)
    inside = ((places[..., :1] - cx).abs() < ex + MARGIN) & ((places[..., 1:] - cy).abs() < ey + MARGIN)
    boxes = moving_boxes(view.world, view.state.values if values is None else values)
    several = boxes.repeat_interleave(places.shape[1], 0)
    apart = floor_distances(places.flatten(0, 1), several).amin(1).view(places.shape[:2])
    return ~inside.any(2) & (apart > RADIUS + MARGIN)
