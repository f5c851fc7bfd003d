"""`House`: one apartment with a kitchen, its fridge and its drawers. Lengths are metres, z points up, the floor is 0.

A moving box is (cx, cy, cz, ex, ey, ez, yaw): its centre, its half extents, and its rotation about z.

Legend: J joints, M moving boxes, S surfaces.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from paceline.sims.navigation.scenes.scene import Rect, Scene

ROBOT_RADIUS = 0.25
FRIDGE, UPPER_DRAWER, LOWER_DRAWER = range(3)
NUM_JOINTS = 3
NUM_MOVING = 14
"""Two boxes of the fridge's door, and six of each drawer."""
IN_THE_OPEN = -1
"""Stands for the joint of a surface that is always accessible."""
SURFACE_KINDS = ("counter", "table", "fridge", "drawer", "desk", "chest", "block", "sofa", "bed")


class Surface(NamedTuple):
    """A horizontal rectangle that objects can lie on."""

    area: Rect
    z: float
    kind: str
    """One of `SURFACE_KINDS`."""
    joint: int = IN_THE_OPEN
    """FRIDGE: the door must be open. A drawer: the surface moves with it, and `area` is that of the closed drawer."""


@dataclass(frozen=True, kw_only=True)
class House:
    scene: Scene
    """All boxes that never move, for a base of `ROBOT_RADIUS`."""
    joints: np.ndarray
    """float64 [J, 6]: is_slide (0 or 1), x, y, dx, dy, limit.

    The fridge's door is a hinge with a vertical axis at (x, y). Seen from above, it opens counter-clockwise if dx is 1,
    and clockwise if dx is -1. Its limit is an angle in radians. A drawer slides along the unit vector (dx, dy). Its
    limit is a length.
    """
    moving: np.ndarray
    """float64 [M, 7]: the moving boxes while everything is closed."""
    moving_joint: np.ndarray
    """int64 [M]: the joint that moves each of them."""
    moving_colors: np.ndarray
    """uint8 [M, 3]."""
    handles: np.ndarray
    """float64 [J, 3]: the centre of each handle while everything is closed."""
    surfaces: tuple[Surface, ...]

    def moved(self, values: np.ndarray) -> np.ndarray:
        """float64 [..., M, 7]: the moving boxes at joint `values` [..., J]."""
        is_slide, x, y, dx, dy, _ = self.joints[self.moving_joint].T
        value = np.asarray(values, np.float64)[..., self.moving_joint]
        boxes = np.broadcast_to(self.moving, (*value.shape, 7)).copy()
        turn = np.where(is_slide > 0, 0.0, dx * value)
        way = np.where(is_slide > 0, value, 0.0)
        ax, ay = boxes[..., 0] - x, boxes[..., 1] - y
        boxes[..., 0] = x + np.cos(turn) * ax - np.sin(turn) * ay + way * dx
        boxes[..., 1] = y + np.sin(turn) * ax + np.cos(turn) * ay + way * dy
        boxes[..., 6] += turn
        return boxes

    def outward(self, joint: int) -> np.ndarray:
        """float64 [2]: the unit vector from the fridge or the cabinet to the free floor in front of it."""
        if self.joints[joint, 0]:
            return self.joints[joint, 3:5]
        # A closed door opens at a right angle to the line from its hinge to its handle.
        panel = self.moving[self.moving_joint == joint][0]
        along = panel[:2] - self.joints[joint, 1:3]
        along = np.where(panel[3:5] == panel[3:5].max(), along, 0.0) / np.abs(along).max()
        return self.joints[joint, 3] * np.array([-along[1], along[0]])
