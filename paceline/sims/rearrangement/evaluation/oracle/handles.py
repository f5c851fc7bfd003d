"""Phases for doors and drawers: take the handle, move it with the arm and the base together, and let it go.

The hand comes from the side of the robot and from above.

Legend: R robots in a phase, C candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.rearrangement.evaluation.inverse_kinematics import (
    hand_direction,
    jacobians,
    least_squares,
    limits,
    solve,
)
from paceline.sims.rearrangement.evaluation.oracle.phases import RobotMove, RobotView, seen, straight, waits
from paceline.sims.rearrangement.evaluation.oracle.reaching import PACE, elbow_up
from paceline.sims.rearrangement.evaluation.oracle.stands import is_free
from paceline.sims.rearrangement.physics.world import handle_position, projections
from paceline.sims.rearrangement.robot.arm import SHOULDER, Arm, forward_kinematics
from paceline.sims.rearrangement.tasks.protocol import row

BEFORE, TOUCHES = 0.15, 0.075
"""Distances of the tip from the handle before it is taken, and where it is taken."""
TILT = 0.9
"""Angle of the hand below the horizon, in radians."""
TAKES, MOVES = (0.74, 0.98), (0.3, 0.98)
"""Distances of the base from a handle at which the arm takes it, and at which it moves a door."""
MOVES_DRAWER = (0.3, 1.5)
"""The same for a drawer, where the base drives along."""
FACING, FACING_OPEN_DOOR = 0.75, 0.15
"""Least sine of the angle between the front and the line from the handle to the base when the handle is taken. That of
an open door is smaller, because there may be no space in front of it."""
BESIDE = -0.35
"""The same while a door moves: the hand may come around its edge."""
RADII, NUM_ANGLES, NUM_VALUES = (0.76, 0.81, 0.86, 0.91, 0.96), 24, 5
"""Candidates for the stand around the handle, and the values of the joint for which they are tested."""
BASE_SHARE = 0.5
"""Weight of the base's motions relative to those of the arm."""
PULL = 0.025
"""Metres that a handle moves in a step."""


class ReachHandle:
    """Brings the tip in front of the handle."""

    patience = 70

    def enter(self, view: RobotView) -> None:
        target = seen(view.pose, handle_of(view)) - BEFORE * towards(view)
        view.notes.angles.copy_(solve(target, hand_wish(view), elbow_up(target)))

    def move(self, view: RobotView) -> RobotMove:
        wanted = view.notes.angles
        near = (wanted - view.state.angles).abs().amax(1) < 0.01
        return RobotMove(wanted, waits(view), torch.zeros_like(near), near)


class TakeHandle:
    patience = 30

    def enter(self, view: RobotView) -> None:
        pass

    def move(self, view: RobotView) -> RobotMove:
        handle = handle_of(view)
        angles = straight(view, handle - 0.06 * turned(view, towards(view)), hand_wish(view), PACE)
        left = (handle - view.arm.tip).norm(dim=1)
        return RobotMove(angles, waits(view), left < TOUCHES, view.state.held == view.notes.target + view.num_objects)


class Pull:
    """Moves the handle until its joint is at a value. Arm and base move together, by damped least squares."""

    patience = 150

    def __init__(
        self, wanted: Callable[[RobotView], Tensor], forward_step: float, turn_step: float, arm_step: float
    ) -> None:
        self._wanted, self._steps = wanted, (arm_step,) * 7 + (forward_step, turn_step)

    def enter(self, view: RobotView) -> None:
        view.notes.point.copy_(view.arm.tip)

    def move(self, view: RobotView) -> RobotMove:
        joints, value = joint_of(view), value_of(view)
        left = self._wanted(view) - value
        lever = (handle_of(view)[:, :2] - joints[:, 1:3]).norm(dim=1)
        most = torch.where(joints[:, 0] > 0.5, PULL, PULL / lever)
        first = row(projections(view.world, view.notes.point), view.notes.target) + view.state.grasp[:, 0]
        following = value + torch.clamp(left, -most, most)
        place = handle_position(joints, view.notes.point, following - first)
        motion = self._whole_body(view, seen(view.pose, place) - view.tip)
        done = (left.abs() < 0.01) | ~view.holds()
        return RobotMove(view.state.angles + motion[:, :7], motion[:, 7:], ~done, done)

    def _whole_body(self, view: RobotView, way: Tensor) -> Tensor:
        """[R, 9]: turns of the arm, and motions of the base, that move the tip by `way` [R, 3] (base frame)."""
        angles = view.state.angles
        arm = forward_kinematics(angles)
        tip, hand = _with_base(angles, arm)
        wish = hand_wish(view) - hand_direction(arm)
        scale = torch.ones_like(tip[:1, 0])
        scale[:, 7:] = BASE_SHARE
        low, high = limits(angles)
        motion = least_squares(tip * scale[:, None], way, hand * scale[:, None], wish * 0.2)
        leaves = ((angles >= high) & (motion[:, :7] > 0)) | ((angles <= low) & (motion[:, :7] < 0))
        scale = scale.repeat(len(angles), 1)
        scale[:, :7] *= ~leaves
        motion = least_squares(tip * scale[:, None], way, hand * scale[:, None], wish * 0.2) * scale
        share = (motion.abs() / torch.tensor(self._steps, device=way.device)).amax(1, keepdim=True).clamp(min=1.0)
        return motion / share


def stands_before_handle(wanted: float) -> Callable[[RobotView], Tensor]:
    """From R robots to the nearest poses [R, 3] from which the arm moves the joint to `wanted`."""
    return lambda view: handle_stands(view, wanted).poses


class HandleStands(NamedTuple):
    """Where R robots stand to move a joint."""

    poses: Tensor
    """[R, 3]."""
    takes: Tensor
    """bool [R]: whether the arm takes the handle from there. If not, there is no such place."""


def handle_stands(view: RobotView, wanted: float) -> HandleStands:
    """The nearest poses from which the arm moves the joint to `wanted`."""
    handle, value = handle_of(view)[:, :2], value_of(view)
    slides = joint_of(view)[:, 0] > 0.5
    places = candidates(view, handle)
    values = value[:, None] + (wanted - value)[:, None] * torch.linspace(0.0, 1.0, NUM_VALUES, device=value.device)
    length = (places - handle[:, None]).norm(dim=2)
    is_open_door = ~slides & (value > wanted)
    faces = _front_sine(view, places, value) > torch.where(is_open_door, FACING_OPEN_DOOR, FACING)[:, None]
    takes = (length > TAKES[0]) & (length < TAKES[1]) & faces & is_free(view, places)
    moves = takes & torch.stack([_suits(view, places, each) for each in values.unbind(1)]).all(0)
    travel = (places - view.pose[:, None, :2]).norm(dim=2)
    order = (travel + 3.0 * (~moves).float() + 100.0 * (~takes).float()).argsort(1)
    number = (view.notes.attempt * 4).clamp(max=places.shape[1] - 1)
    best = order.gather(1, number[:, None])[:, 0]
    place = row(places, best)
    end = handle_position(joint_of(view), row(view.world.handles, view.notes.target), torch.full_like(value, wanted))
    middle = torch.where(slides[:, None], handle, 0.5 * (handle + end[:, :2]))
    is_fixed = (row(moves, best) | ~is_open_door)[:, None]
    poses = torch.where(is_fixed, facing(place, middle), _along_circle(view, place))
    return HandleStands(poses, row(takes, best))


def candidates(view: RobotView, centers: Tensor) -> Tensor:
    """[R, C, 2]: where the robots are, and places around `centers` [R, 2]."""
    angles = torch.arange(NUM_ANGLES, device=centers.device) * (2 * math.pi / NUM_ANGLES)
    offsets = (
        torch.stack((angles.cos(), angles.sin()), 1)[:, None] * torch.tensor(RADII, device=centers.device)[:, None]
    )
    return torch.cat((view.pose[:, None, :2], centers[:, None] + offsets.view(1, -1, 2)), 1)


def _suits(view: RobotView, places: Tensor, value: Tensor) -> Tensor:
    """bool [R, C]: whether the arm reaches the handle from `places`, and the base is free, at a value [R]."""
    handle = handle_position(joint_of(view), row(view.world.handles, view.notes.target), value)[:, None, :2]
    length = (places - handle).norm(dim=2)
    is_target = torch.arange(view.state.values.shape[1], device=value.device) == view.notes.target[:, None]
    values = torch.where(is_target, value[:, None], view.state.values)
    low, high = (
        torch.where(joint_of(view)[:, :1] > 0.5, slide, hinge) for slide, hinge in zip(MOVES_DRAWER, MOVES, strict=True)
    )
    in_reach = (length > low) & (length < high)
    return in_reach & is_free(view, places, values) & (_front_sine(view, places, value) > BESIDE)


def _front_sine(view: RobotView, places: Tensor, value: Tensor) -> Tensor:
    """[R, C]: how far `places` [R, C, 2] are in front of the door or drawer at a value [R], seen from its handle.

    1 is straight in front, 0 is in its plane.
    """
    joints = joint_of(view)
    outward = frame_of(view)[1]
    turn = torch.where(joints[:, 0] > 0.5, 0.0, joints[:, 3] * value)
    cos, sin = turn.cos(), turn.sin()
    x, y = outward.unbind(1)
    normal = torch.stack((cos * x - sin * y, sin * x + cos * y), 1)
    handle = handle_position(joints, row(view.world.handles, view.notes.target), value)[:, None, :2]
    way = places - handle
    return (way * normal[:, None]).sum(2) / way.norm(dim=2).clamp(min=1e-6)


def _along_circle(view: RobotView, places: Tensor) -> Tensor:
    """[R, 3]: poses that face along a circle around the hinge, in the direction in which the door closes."""
    inward = joint_of(view)[:, 1:3] - places
    heading = torch.atan2(inward[:, 1], inward[:, 0]) + joint_of(view)[:, 3] * (0.5 * math.pi - 0.15)
    return torch.cat((places, heading[:, None]), 1)


def facing(places: Tensor, targets: Tensor) -> Tensor:
    """[R, 3]: poses at `places` [R, 2] that face `targets` [R, 2]."""
    way = targets - places
    return torch.cat((places, torch.atan2(way[:, 1:], way[:, :1])), 1)


def frame_of(view: RobotView) -> tuple[Tensor, Tensor]:
    """[R, 2] each: along the front of the closed door or drawer, from the hinge to the handle, and outward."""
    joints = joint_of(view)
    way = row(view.world.handles, view.notes.target)[:, :2] - joints[:, 1:3]
    along = torch.where(way.abs() == way.abs().amax(1, keepdim=True), way.sign(), 0.0)
    side = torch.stack((-along[:, 1], along[:, 0]), 1) * joints[:, 3:4]
    outward = torch.where(joints[:, :1] > 0.5, joints[:, 3:5], side)
    across = torch.stack((-outward[:, 1], outward[:, 0]), 1)
    return torch.where(joints[:, :1] > 0.5, across, along), outward


def joint_of(view: RobotView) -> Tensor:
    return row(view.world.joints, view.notes.target)


def value_of(view: RobotView) -> Tensor:
    return row(view.state.values, view.notes.target)


def handle_of(view: RobotView) -> Tensor:
    """[R, 3]: where the handle is."""
    return handle_position(joint_of(view), row(view.world.handles, view.notes.target), value_of(view))


def towards(view: RobotView) -> Tensor:
    """[R, 3]: the horizontal direction from the shoulder to the handle, in the base frame."""
    way = seen(view.pose, handle_of(view))
    way = torch.stack((way[:, 0] - SHOULDER[0], way[:, 1], torch.zeros_like(way[:, 0])), 1)
    return way / way.norm(dim=1, keepdim=True)


def hand_wish(view: RobotView) -> Tensor:
    """[R, 3]: the direction of the hand, in the base frame."""
    down = torch.tensor([[0.0, 0.0, -math.sin(TILT)]], device=view.pose.device)
    return towards(view) * math.cos(TILT) + down


def turned(view: RobotView, directions: Tensor) -> Tensor:
    """[R, 3]: `directions` of the base frame in the world."""
    cos, sin = view.pose[:, 2].cos(), view.pose[:, 2].sin()
    x, y, z = directions.unbind(1)
    return torch.stack((cos * x - sin * y, sin * x + cos * y, z), 1)


def _with_base(angles: Tensor, arm: Arm) -> tuple[Tensor, Tensor]:
    """[R, 3, 9] each: the Jacobians of tip and hand, with the motions of the base as last columns."""
    tip, hand = jacobians(angles, arm)
    zero = torch.zeros_like(arm.tip[:, 0])
    forward = torch.stack((zero + 1.0, zero, zero), 1)
    turns = [torch.stack((-point[:, 1], point[:, 0], zero), 1) for point in (arm.tip, hand_direction(arm))]
    return (
        torch.cat((tip, forward[..., None], turns[0][..., None]), 2),
        torch.cat((hand, torch.zeros_like(forward)[..., None], turns[1][..., None]), 2),
    )
