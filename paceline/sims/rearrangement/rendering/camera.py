"""`HeadCamera`: the depth images of the robots. Nothing is rendered twice.

Legend: N robots, D moving boxes, L links of the arm.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.navigation.rendering.render import DEPTH_DTYPES, encode_depth
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.physics.world import State, World, arm_of, moving_boxes, object_boxes
from paceline.sims.rearrangement.rendering.candidates import StaticBoxes
from paceline.sims.rearrangement.rendering.head import camera_poses, head_camera
from paceline.sims.rearrangement.rendering.trace import trace
from paceline.sims.rearrangement.robot.arm import LINK_RADII
from paceline.sims.rearrangement.scenes.bank import HouseBank

Images = dict[str, Tensor]


class Scenery(NamedTuple):
    """What the cameras of N robots see, beside the static boxes."""

    scenes: Tensor
    """int64 [N]."""
    poses: Tensor
    """[N, 3]: of the cameras."""
    boxes: Tensor
    """[N, D, 7]: doors, drawers and objects, also the one in the hand."""
    capsules: Tensor
    """[N, L, 7]: the arm."""


def scenery(world: World, state: State, scenes: Tensor) -> Scenery:
    boxes = torch.cat((moving_boxes(world, state.values), object_boxes(world, state)), 1)
    starts, ends = arm_of(state).links()
    radii = constant(LINK_RADII, starts)[None, :, None].expand(len(starts), -1, 1)
    return Scenery(scenes, camera_poses(state.pose), boxes, torch.cat((starts, ends, radii), 2))


def depth_space(config: RearrangementConfig) -> dict[str, spaces.Space]:
    if config.sensors == "blind":
        return {}
    highest = 255 if config.depth_dtype == "uint8" else 1
    shape = (1, config.resolution, config.resolution)
    return {"depth": spaces.Box(0, highest, shape, np.dtype(config.depth_dtype).type)}


class HeadCamera:
    """Renders the images of streams at one time, or before and after some of them are reset."""

    def __init__(self, bank: HouseBank, config: RearrangementConfig, device: torch.device) -> None:
        self._is_blind = config.sensors == "blind"
        self._dtype = DEPTH_DTYPES[config.depth_dtype]
        self._static, self._camera = StaticBoxes.of(bank), head_camera(config.resolution, device)

    def see(self, what: Scenery) -> Images:
        if self._is_blind:
            return {}
        return self._images(trace(self._static, self._camera, *what).depth)

    def see_both(self, before: Scenery, after: Scenery, changed: Tensor) -> tuple[Images, Images]:
        """The images of `before` and of `after`, which differ only for the streams in `changed` (bool [N])."""
        if self._is_blind:
            return {}, {}
        if changed.is_cuda:
            view = trace(self._static, self._camera, *before)
            again = trace(self._static, self._camera, *after, only=changed, otherwise=view)
            return self._images(view.depth), self._images(again.depth)
        rows = changed.nonzero()[:, 0]  # on the host this does not wait for a device
        if not len(rows):
            images = self.see(before)
            return images, images
        both = self.see(Scenery(*(torch.cat((old, new[rows])) for old, new in zip(before, after, strict=True))))
        num = len(changed)
        first = {name: values[:num] for name, values in both.items()}
        return first, {name: values.index_copy(0, rows, both[name][num:]) for name, values in first.items()}

    def _images(self, depth: Tensor) -> Images:
        return {"depth": encode_depth(depth, self._dtype)}
