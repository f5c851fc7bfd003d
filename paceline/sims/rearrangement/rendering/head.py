"""The camera on the robot's head."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sims.navigation.rendering.render import Camera

HEAD_HEIGHT = 1.5
HEAD_FORWARD = 0.2
"""The camera's distance from the base's centre, in metres."""
HEAD_SHIFT = -0.65
"""The lens shift: the rows have slopes from 0.35 down to -1.65."""


def head_camera(resolution: int, device: str | torch.device = "cpu") -> Camera:
    return Camera(resolution, device, height=HEAD_HEIGHT, shift=HEAD_SHIFT)


def camera_poses(bases: Tensor) -> Tensor:
    """The camera's poses [N, 3] (x, y, heading) of robots whose bases are at `bases` [N, 3]."""
    heading = bases[:, 2]
    ahead = torch.stack((heading.cos(), heading.sin(), torch.zeros_like(heading)), 1)
    return torch.add(bases, ahead, alpha=HEAD_FORWARD)
