"""From the tensors of a bank to what is around N robots."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paceline.sims.navigation.scenes.scene import CEILING
from paceline.sims.rearrangement.physics.world import World


def world_of(bank: Any, static: Tensor, scenes: Tensor, extents: Tensor) -> World:
    """The surroundings of robots in `scenes` (int64 [N]), with objects of half `extents` [N, O, 3].

    `static` [K, S, 7] are the static boxes of all houses.
    """
    return World(
        static[scenes],
        bank.contact[scenes],
        bank.joints[scenes],
        bank.moving[scenes],
        bank.moving_joint[scenes],
        bank.handles[scenes],
        extents,
    )


def static_boxes(bank: Any) -> Tensor:
    """[K, S, 7]: the boxes of all houses that never move. On a CPU without needless padding. Reads the device."""
    num_walls, num_parts = bank.footprints.shape[1] - bank.heights.shape[1], bank.heights.shape[1]
    most_walls, most_parts = num_walls, num_parts
    if bank.footprints.device.type == "cpu":
        most_walls, most_parts = bank.counts[:, :2].amax(0).tolist()
    walls = bank.footprints[:, :most_walls]
    parts = bank.footprints[:, num_walls : num_walls + most_parts]
    up = torch.tensor([0.0, CEILING], device=walls.device).expand(*walls.shape[:2], 2)
    rects = torch.cat((walls, parts), 1)
    heights = torch.cat((up, bank.heights[:, :most_parts]), 1)
    low = torch.cat((rects[..., :2], heights[..., :1]), 2)
    high = torch.cat((rects[..., 2:], heights[..., 1:]), 2)
    return torch.cat(((low + high) / 2, (high - low) / 2, torch.zeros_like(low[..., :1])), 2)
