"""Inverse kinematics of the arm by damped least squares, for N robots at once.

The position of the tip comes first. The direction of the hand is followed as far as the position leaves it free.

Legend: N robots, K columns: motions of the robot.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from paceline.sims.rearrangement.robot.arm import (
    FOREARM_ROLL,
    HAND,
    LIMITS,
    PAN,
    SHOULDER,
    UPPER_ROLL,
    Arm,
    forward_kinematics,
)

ITERATIONS = 40
DAMPING = 0.02
"""Of the position, in metres per radian."""
DIRECTION_DAMPING = 0.3
LONGEST = 0.1
"""The tip goes at most this far in an iteration, in metres."""
MOST_TURN = 0.3
"""Largest turn of a joint in an iteration, in radians."""


def solve(targets: Tensor, directions: Tensor, start: Tensor, iterations: int = ITERATIONS) -> Tensor:
    """[N, 7]: angles that bring the tip to `targets` [N, 3], in the base frame, or as near as the search gets.

    The hand points along `directions` [N, 3], unit vectors, if it can. The search begins at the angles `start` [N, 7].
    """
    low, high = limits(start)
    angles = torch.minimum(torch.maximum(start, low), high)
    for number in range(iterations):
        arm = forward_kinematics(angles)
        tip, hand = jacobians(angles, arm)
        way = targets - arm.tip
        way = way * (LONGEST / way.norm(dim=1, keepdim=True).clamp(min=LONGEST))
        # Damping lets the direction disturb the position a little, so the last iterations leave it out.
        turn = (directions - hand_direction(arm)) * float(number < 0.75 * iterations)
        step = least_squares(tip, way, hand, turn)
        # A joint that would leave its limits stays there, and the others do its part.
        leaves = ((angles >= high) & (step > 0.0)) | ((angles <= low) & (step < 0.0))
        free = (~leaves).float()[:, None]
        step = least_squares(tip * free, way, hand * free, turn)
        step = step * (MOST_TURN / step.abs().amax(1, keepdim=True).clamp(min=MOST_TURN))
        angles = torch.minimum(torch.maximum(angles + step, low), high)
    return angles


def least_squares(first: Tensor, error: Tensor, second: Tensor, wish: Tensor) -> Tensor:
    """[N, K]: the motion that makes `first` [N, 3, K] times it equal to `error` [N, 3].

    What remains free brings `second` [N, 3, K] times it near `wish` [N, 3].
    """
    inverse = _damped_inverse(first, DAMPING)
    motion = (inverse @ error[..., None])[..., 0]
    unit = torch.eye(first.shape[2], device=first.device)
    free = unit - inverse @ first
    rest = wish - (second @ motion[..., None])[..., 0]
    extra = _damped_inverse(second @ free, DIRECTION_DAMPING) @ rest[..., None]
    return motion + (free @ extra)[..., 0]


def jacobians(angles: Tensor, arm: Arm) -> tuple[Tensor, Tensor]:
    """[N, 3, 7] each: how the tip, and the direction of the hand, change with each angle.

    A joint moves the tip by its axis times the lever from the joint to the tip.
    """
    upper, forearm, hand = (_unit(b - a) for a, b in pairwise(arm))
    cos, sin = angles[:, :, None].cos(), angles[:, :, None].sin()
    zero, one = torch.zeros_like(cos[:, PAN]), torch.ones_like(cos[:, PAN])
    up = torch.cat((zero, zero, one), 1)
    side = torch.cat((-sin[:, PAN], cos[:, PAN], zero), 1)
    elbow = cos[:, UPPER_ROLL] * side + sin[:, UPPER_ROLL] * upper.cross(side, dim=1)
    wrist = cos[:, FOREARM_ROLL] * elbow + sin[:, FOREARM_ROLL] * forearm.cross(elbow, dim=1)
    axes = torch.stack((up, side, upper, elbow, forearm, wrist, hand), 2)
    base = torch.tensor(SHOULDER, device=angles.device).expand_as(arm.tip)
    origins = torch.stack((base, arm.shoulder, arm.shoulder, arm.elbow, arm.elbow, arm.wrist, arm.wrist), 2)
    levers = arm.tip[..., None] - origins
    return axes.cross(levers, dim=1), axes.cross(hand[..., None].expand_as(axes), dim=1)


def hand_direction(arm: Arm) -> Tensor:
    """[N, 3]: from the wrist to the tip."""
    return (arm.tip - arm.wrist) / HAND


def limits(like: Tensor) -> tuple[Tensor, Tensor]:
    """[7] each: least and largest angles."""
    low, high = torch.tensor(LIMITS, device=like.device).unbind(1)
    return low, high


def _damped_inverse(matrix: Tensor, damping: float) -> Tensor:
    """[N, K, 3] from [N, 3, K]."""
    turned = matrix.transpose(1, 2)
    square = matrix @ turned + damping**2 * torch.eye(3, device=matrix.device)
    return turned @ torch.linalg.inv(square)


def _unit(vectors: Tensor) -> Tensor:
    return vectors / vectors.norm(dim=1, keepdim=True)
