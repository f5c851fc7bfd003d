"""Phases of the arm: take an object from above, and put it down.

Legend: R robots in a phase.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.sims.rearrangement.evaluation.inverse_kinematics import solve
from paceline.sims.rearrangement.evaluation.oracle.phases import RobotMove, RobotView, seen, straight, waits
from paceline.sims.rearrangement.robot.arm import PAN
from paceline.sims.rearrangement.tasks.protocol import row

RAISED = (0.0, -1.221, 0.0, 0.0, 0.0, 2.16, 0.0)
"""The hand is above the height of counters, with what it holds."""
ABOVE, TOUCH, RELEASE = 0.1, 0.005, 0.012
"""Heights of the tip above an object before and while it is taken, and of an object when it is released, in metres."""
NEAR = 0.02
PACE = 0.03
"""Metres that the tip moves in a step on straight lines."""

Places = Callable[[RobotView], Tensor]
"""From R robots to the places of their tips in the world, [R, 3]."""


class Pose:
    """Moves the arm to `angles`."""

    patience = 80

    def __init__(self, angles: tuple[float, ...]) -> None:
        self._angles = angles

    def enter(self, view: RobotView) -> None:
        pass

    def move(self, view: RobotView) -> RobotMove:
        wanted = torch.tensor([self._angles], device=view.pose.device).expand_as(view.state.angles)
        done = (wanted - view.state.angles).abs().amax(1) < 0.01
        return RobotMove(wanted, waits(view), view.holds(), done)


class Reach:
    """Moves the tip to a place, with the hand down, through joint space."""

    patience = 60

    def __init__(self, places: Places) -> None:
        self._places = places

    def enter(self, view: RobotView) -> None:
        target = seen(view.pose, self._places(view))
        view.notes.angles.copy_(solve(target, down(view), elbow_up(target)))

    def move(self, view: RobotView) -> RobotMove:
        wanted = view.notes.angles
        near = (wanted - view.state.angles).abs().amax(1) < 0.01
        return RobotMove(wanted, waits(view), view.holds(), near)


class Take:
    """Lowers the hand to an object until it is held."""

    patience = 40

    def enter(self, view: RobotView) -> None:
        pass

    def move(self, view: RobotView) -> RobotMove:
        top = top_of(view)
        angles = straight(view, top + _up(view, TOUCH), down(view), PACE)
        is_near = (view.arm.tip - top).norm(dim=1) < 0.028
        return RobotMove(angles, waits(view), is_near, view.state.held == view.notes.target)


class Lower:
    """Lowers an object to its goal."""

    patience = 40

    def __init__(self, places: Places) -> None:
        self._places = places

    def enter(self, view: RobotView) -> None:
        pass

    def move(self, view: RobotView) -> RobotMove:
        place = self._places(view)
        angles = straight(view, place, down(view), PACE)
        left = (place - view.arm.tip).norm(dim=1)
        return RobotMove(angles, waits(view), view.holds(), left < NEAR)


class Release:
    patience = 3

    def enter(self, view: RobotView) -> None:
        pass

    def move(self, view: RobotView) -> RobotMove:
        return RobotMove(view.state.angles, waits(view), torch.zeros_like(view.holds()), ~view.holds())


class Lift:
    """Moves the hand straight up."""

    patience = 25

    def __init__(self, height: float) -> None:
        self._height = height

    def enter(self, view: RobotView) -> None:
        view.notes.point.copy_(view.arm.tip + _up(view, self._height))

    def move(self, view: RobotView) -> RobotMove:
        angles = straight(view, view.notes.point, down(view), PACE)
        done = (view.notes.point - view.arm.tip).norm(dim=1) < NEAR
        return RobotMove(angles, waits(view), view.holds(), done | (view.notes.still > 3))


def above_object(view: RobotView) -> Tensor:
    return top_of(view) + _up(view, ABOVE)


def above_goal(goals: Places) -> Places:
    return lambda view: tip_for(view, goals(view)) + _up(view, ABOVE)


def at_goal(goals: Places) -> Places:
    return lambda view: tip_for(view, goals(view)) + _up(view, RELEASE)


def tip_for(view: RobotView, places: Tensor) -> Tensor:
    """[R, 3]: where the tip is while the object in the hand is at `places` [R, 3].

    An object turns with the arm's pan.
    """
    dx, dy, dz, _ = view.state.grasp.unbind(1)
    tip = places
    for _ in range(3):
        x, y, _ = seen(view.pose, tip).unbind(1)
        yaw = view.pose[:, 2] + torch.atan2(y, x)
        cos, sin = yaw.cos(), yaw.sin()
        tip = places - torch.stack((cos * dx - sin * dy, sin * dx + cos * dy, dz), 1)
    return tip


def top_of(view: RobotView) -> Tensor:
    """[R, 3]: the middle of the object's upper side."""
    place = row(view.state.objects, view.notes.target)[:, :3]
    height = row(view.world.extents, view.notes.target)[:, 2]
    return torch.cat((place[:, :2], (place[:, 2] + height)[:, None]), 1)


def down(view: RobotView) -> Tensor:
    return torch.tensor([[0.0, 0.0, -1.0]], device=view.pose.device).expand(len(view.rows), -1)


def elbow_up(targets: Tensor) -> Tensor:
    """[R, 7]: angles from which the search for `targets` [R, 3] (base frame) finds a raised elbow."""
    start = torch.tensor([[0.0, -0.9, 0.0, 1.2, 0.0, 1.27, 0.0]], device=targets.device).repeat(len(targets), 1)
    start[:, PAN] = torch.atan2(targets[:, 1], targets[:, 0])
    return start


def _up(view: RobotView, height: float) -> Tensor:
    return torch.tensor([[0.0, 0.0, height]], device=view.pose.device)
