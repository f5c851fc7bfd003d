"""`HousePainter`: images of robots in their houses, for people. On the host.

Legend: N moments, S static boxes, C candidates.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.sims.navigation.rendering.render import Camera
from paceline.sims.rearrangement.objects import HALF_EXTENTS, OBJECT_KINDS
from paceline.sims.rearrangement.physics.world import State, World
from paceline.sims.rearrangement.rendering import render
from paceline.sims.rearrangement.rendering.camera import Scenery, scenery
from paceline.sims.rearrangement.rendering.candidates import StaticBoxes
from paceline.sims.rearrangement.rendering.head import head_camera
from paceline.sims.rearrangement.robot.body import OWN_BODY
from paceline.sims.rearrangement.scenes.bank import HouseBank
from paceline.sims.rearrangement.surroundings import static_boxes, world_of

EYE_HEIGHT, EYE_SHIFT = 2.1, -0.5
"""Of the camera that watches a robot."""
KEPT = 0.62
"""The middle share of its image that is shown: a longer focal length."""
FOOT = ((0.0, 0.0, 0.12, 0.23, 0.23, 0.12, 0.0), (0.0, 0.0, 0.12, 0.23, 0.23, 0.12, math.pi / 4))
"""The round base as two boxes."""
BODY_COLORS = ((71, 85, 105), (226, 232, 240), (51, 65, 85), (51, 65, 85))
"""Of the trunk, the head and the base."""


class Moments(NamedTuple):
    """Robots in their houses at N moments."""

    scenes: Tensor
    """int64 [N]."""
    episodes: Tensor
    """int64 [N]: the number within the scene."""
    state: State


class HousePainter:
    def __init__(self, bank: HouseBank) -> None:
        self.bank = bank.to("cpu")
        self._static, self._boxes = StaticBoxes.of(self.bank), static_boxes(self.bank)
        self._extents = torch.tensor(HALF_EXTENTS)

    def world(self, moments: Moments) -> World:
        kinds = self.bank.object_kinds[moments.scenes, moments.episodes]
        return world_of(self.bank, self._boxes, moments.scenes, self._extents[kinds])

    def solids(self, scene: int) -> np.ndarray:
        """[S, 7]: the static boxes of a house."""
        return self._boxes[scene].double().numpy()

    def depth(self, moments: Moments, side: int) -> np.ndarray:
        """float32 [N, side, side]: what the robots see, as a share of `MAX_DEPTH`."""
        seen = scenery(self.world(moments), moments.state, moments.scenes)
        return render.trace(self._static, head_camera(side), *seen).depth.numpy()

    def watched(self, moments: Moments, cameras: Tensor, side: int) -> np.ndarray:
        """uint8 [N, side, side, 3]: the robots as cameras at `cameras` [N, 3] (x, y, heading) see them."""
        seen = scenery(self.world(moments), moments.state, moments.scenes)
        body = _body(moments.state.pose)
        boxes = torch.cat((seen.boxes, body), 1)
        seen = Scenery(moments.scenes, cameras, boxes, seen.capsules)
        camera = Camera(round(side / KEPT), height=EYE_HEIGHT, shift=EYE_SHIFT)
        view = render.trace(self._static, camera, *seen, surfaces=True)
        colors = self._colors(moments)
        image = render.shade(self._static, camera, moments.scenes, cameras, view, colors, seen.capsules.shape[1])
        first = (camera.resolution - side) // 2
        return image[..., first : first + side, first : first + side].permute(0, 2, 3, 1).numpy()

    def _colors(self, moments: Moments) -> Tensor:
        """uint8 [N, boxes, 3]: of doors, drawers, objects and the robot."""
        kinds = self.bank.object_kinds[moments.scenes, moments.episodes]
        of_kinds = torch.tensor([kind.color for kind in OBJECT_KINDS], dtype=torch.uint8)
        body = torch.tensor(BODY_COLORS, dtype=torch.uint8).expand(len(kinds), -1, -1)
        return torch.cat((self.bank.moving_colors[moments.scenes], of_kinds[kinds], body), 1)


def _body(poses: Tensor) -> Tensor:
    """[N, 4, 7]: trunk, head and base of robots at `poses` [N, 3]."""
    boxes = torch.tensor((*OWN_BODY, *FOOT)).expand(len(poses), -1, -1)
    x, y, heading = poses[:, :, None].unbind(1)
    along, across, cos, sin = boxes[..., 0], boxes[..., 1], heading.cos(), heading.sin()
    places = torch.stack((x + cos * along - sin * across, y + sin * along + cos * across), 2)
    return torch.cat((places, boxes[..., 2:6], boxes[..., 6:] + heading[..., None]), 2)
