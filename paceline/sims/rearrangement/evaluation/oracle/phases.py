"""`Phase`: one part of a script, for the robots that are in it.

Legend: R robots in a phase, O objects, J joints of the house.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.sims.rearrangement.evaluation.inverse_kinematics import solve
from paceline.sims.rearrangement.physics.world import NOTHING, State, World
from paceline.sims.rearrangement.robot.arm import Arm


class Notes(NamedTuple):
    """What the oracle remembers of each robot."""

    target: Tensor
    """int64 [R]: the object, or the joint of the house."""
    stand: Tensor
    """[R, 3]: where the base goes: x, y and heading."""
    attempt: Tensor
    """int64 [R]: how often the robot has begun again."""
    point: Tensor
    """[R, 3]: a place that the phase has noted when it began."""
    progress: Tensor
    """[R, 2]: the shortest way that was left so far in metres, and steps since then."""
    angles: Tensor
    """[R, 7]: the same for angles of the arm."""
    detour: Tensor
    """[R, 3]: steps that are left of a detour, and its motion: forward in metres and left turn in radians."""
    steps: Tensor
    """int64 [R]: in this phase."""
    still: Tensor
    """int64 [R]: steps since the robot has last moved."""

    @classmethod
    def empty(cls, num: int, device: torch.device) -> Notes:
        """Those of `num` robots that have not begun."""
        counts, places = torch.zeros(4, num, dtype=torch.int64, device=device), torch.zeros(3, num, 3, device=device)
        return cls(
            target=counts[0],
            stand=places[0],
            attempt=counts[1],
            point=places[1],
            progress=torch.zeros(num, 2, device=device),
            angles=torch.zeros(num, 7, device=device),
            detour=places[2],
            steps=counts[2],
            still=counts[3],
        )


@dataclass(frozen=True)
class RobotView:
    """What a phase sees of its robots."""

    rows: Tensor
    """int64 [R]: their numbers in the simulator."""
    scenes: Tensor
    episodes: Tensor
    state: State
    world: World
    arm: Arm
    """In the world."""
    columns: Tensor
    notes: Notes

    @property
    def pose(self) -> Tensor:
        return self.state.pose

    @property
    def tip(self) -> Tensor:
        """[R, 3]: in the base frame."""
        return seen(self.pose, self.arm.tip)

    def part(self, rows: Tensor) -> RobotView:
        """What it sees of some of its robots."""
        return RobotView(
            self.rows[rows],
            self.scenes[rows],
            self.episodes[rows],
            State(*(part[rows] for part in self.state)),
            World(*(part[rows] for part in self.world)),
            Arm(*(part[rows] for part in self.arm)),
            self.columns[rows],
            Notes(*(part[rows] for part in self.notes)),
        )

    @property
    def num_objects(self) -> int:
        return self.state.objects.shape[1]

    def holds(self) -> Tensor:
        """bool [R]."""
        return self.state.held != NOTHING

    def held_object(self) -> Tensor:
        """int64 [R]: the object in the hand; 0 for none."""
        return self.state.held.clamp(0, self.num_objects - 1)


class RobotMove(NamedTuple):
    """What a phase does with its robots."""

    angles: Tensor
    """[R, 7]: where the arm goes."""
    base: Tensor
    """[R, 2]: forward in metres and left turn in radians."""
    closes: Tensor
    """bool [R]: whether the suction cup holds."""
    done: Tensor
    """bool [R]: whether the phase is over."""
    stops: Tensor | None = None
    """bool [R]."""
    fails: Tensor | None = None
    """bool [R]: whether the phase gives up."""


class Phase(Protocol):
    patience: int
    """Most steps of this phase."""

    def enter(self, view: RobotView) -> None:
        """The robots of `view` begin this phase. It may write `view.notes`."""
        ...

    def move(self, view: RobotView) -> RobotMove: ...


def seen(poses: Tensor, points: Tensor) -> Tensor:
    """[R, 3]: `points` of the world in the base frame of robots at `poses`."""
    cos, sin = poses[:, 2].cos(), poses[:, 2].sin()
    x, y = (points[:, :2] - poses[:, :2]).unbind(1)
    return torch.stack((cos * x + sin * y, cos * y - sin * x, points[:, 2]), 1)


def wrapped(angles: Tensor) -> Tensor:
    """The same angles from -pi to pi."""
    return torch.remainder(angles + math.pi, 2.0 * math.pi) - math.pi


def waits(view: RobotView) -> Tensor:
    """[R, 2]: no motion of the base."""
    return torch.zeros_like(view.pose[:, :2])


def straight(view: RobotView, target: Tensor, direction: Tensor, length: float) -> Tensor:
    """[R, 7]: angles that bring the tip nearer to `target` [R, 3] (world) on a straight line, by at most `length`."""
    goal, tip = seen(view.pose, target), view.tip
    way = goal - tip
    way = way * (length / way.norm(dim=1, keepdim=True).clamp(min=length))
    return solve(tip + way, direction, view.state.angles, iterations=3)
