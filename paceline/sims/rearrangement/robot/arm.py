"""Forward kinematics of the arm: from joint angles to the places of its links.

Seven joints with the proportions of a Fetch robot: pan, lift, upper-arm roll, elbow, forearm roll, wrist, wrist roll.
Pan turns about z, lift, elbow and wrist about y, the rolls about x. In the zero pose the arm points forward. A positive
lift, elbow or wrist points it down.

The base frame has x forward, y left, z up, and its origin on the floor below the centre of the base.

Legend: N robots.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.constants import constant

NUM_JOINTS = 7
PAN, LIFT, UPPER_ROLL, ELBOW, FOREARM_ROLL, WRIST, WRIST_ROLL = range(NUM_JOINTS)
LIMITS = (
    (-1.6056, 1.6056),
    (-1.221, 1.518),
    (-math.pi, math.pi),
    (-2.251, 2.251),
    (-math.pi, math.pi),
    (-2.16, 2.16),
    (-math.pi, math.pi),
)
"""Least and largest angle of each joint, in radians."""
REST_ANGLES = (-0.5, -1.2, 0.0, 1.0, 0.0, 1.77, 0.0)
"""The arm is raised at the robot's right side, and the hand points down."""

SHOULDER = (0.03, 0.0, 0.876)
"""The pan joint in the base frame."""
TO_LIFT = (0.117, 0.06)
"""From the pan joint to the lift joint: forward and up."""
UPPER_ARM = 0.352
"""From lift to elbow."""
FOREARM = 0.3215
"""From elbow to wrist."""
HAND = 0.305
"""From the wrist to the tip of the suction cup."""
LINK_RADII = (0.07, 0.06, 0.04)
"""Of the upper arm, the forearm and the hand."""


class Arm(NamedTuple):
    """Places of the arm, [N, 3] each."""

    shoulder: Tensor
    """The lift joint."""
    elbow: Tensor
    wrist: Tensor
    tip: Tensor

    def links(self) -> tuple[Tensor, Tensor]:
        """[N, 3, 3] each: where the axes of upper arm, forearm and hand begin and end. As capsules with `LINK_RADII`
        they are the arm: the round end of the hand touches the tip."""
        end = self.tip + (self.wrist - self.tip) * (LINK_RADII[2] / HAND)
        return torch.stack((self.shoulder, self.elbow, self.wrist), 1), torch.stack((self.elbow, self.wrist, end), 1)

    def placed(self, poses: Tensor) -> Arm:
        """The arm in the world, if it is in the base frame of robots at `poses` [N, 3] (x, y, heading)."""
        cos, sin = poses[:, 2].cos(), poses[:, 2].sin()
        return Arm(*(_placed(point, poses, cos, sin) for point in self))


def placed_arm(angles: Tensor, poses: Tensor) -> Arm:
    """The arm in the world, for joint `angles` [N, 7] of robots at `poses` [N, 3] (x, y, heading)."""
    if angles.is_cuda:
        # Imported here, because Triton is installed only with CUDA.
        from paceline.sims.rearrangement.robot import arm_triton

        return arm_triton.placed_arm(angles, poses)
    return forward_kinematics(angles).placed(poses)


def forward_kinematics(angles: Tensor) -> Arm:
    """The arm in the base frame, for joint `angles` [N, 7]."""
    cos, sin = angles.cos().unbind(1), angles.sin().unbind(1)
    zero, one = torch.zeros_like(cos[0]), torch.ones_like(cos[0])
    x = torch.stack((cos[PAN], sin[PAN], zero), 1)
    y = torch.stack((-sin[PAN], cos[PAN], zero), 1)
    z = torch.stack((zero, zero, one), 1)
    shoulder = x * TO_LIFT[0] + z * TO_LIFT[1] + constant(SHOULDER, angles)
    x, z = _about_y(x, z, cos[LIFT], sin[LIFT])
    elbow = shoulder + x * UPPER_ARM
    y, z = _about_x(y, z, cos[UPPER_ROLL], sin[UPPER_ROLL])
    x, z = _about_y(x, z, cos[ELBOW], sin[ELBOW])
    wrist = elbow + x * FOREARM
    y, z = _about_x(y, z, cos[FOREARM_ROLL], sin[FOREARM_ROLL])
    x, _ = _about_y(x, z, cos[WRIST], sin[WRIST])
    return Arm(shoulder, elbow, wrist, wrist + x * HAND)


def _about_y(x: Tensor, z: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The axes x and z [N, 3] of a frame that is turned about its own y."""
    cos, sin = cos[:, None], sin[:, None]
    return cos * x - sin * z, sin * x + cos * z


def _about_x(y: Tensor, z: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos[:, None], sin[:, None]
    return cos * y + sin * z, cos * z - sin * y


def _placed(point: Tensor, poses: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    x, y, z = point.unbind(1)
    return torch.stack((poses[:, 0] + cos * x - sin * y, poses[:, 1] + sin * x + cos * y, z), 1)
