"""A room made by hand: a table, a fridge with a door, a drawer unit, and objects."""

from __future__ import annotations

import torch

from paceline.sims.navigation.scenes.geometry import boxed
from paceline.sims.rearrangement.physics.contact import depths
from paceline.sims.rearrangement.physics.world import NOTHING, State, World, arm_of
from paceline.sims.rearrangement.robot.arm import REST_ANGLES

FAR = (1e4, 1e4, 0.0, 0.1, 0.1, 0.1, 0.0)
TABLE = (2.0, 0.0, 0.7, 0.5, 1.0, 0.05, 0.0)
"""Its top is at 0.75 m."""
FRIDGE = (0.0, 3.0, 1.0, 0.3, 0.3, 1.0, 0.0)
DOOR = (0.0, 2.67, 1.0, 0.3, 0.03, 0.9, 0.0)
"""In front of the fridge, with its hinge at the left end, (-0.3, 2.7)."""
DRAWER_BOTTOM = (-2.0, 0.0, 0.5, 0.2, 0.3, 0.01, 0.0)
DRAWER_FRONT = (-1.79, 0.0, 0.6, 0.01, 0.3, 0.1, 0.0)
CABINET_TOP = (-2.0, 0.0, 0.75, 0.25, 0.35, 0.02, 0.0)
JOINTS = ((0.0, -0.3, 2.7, -1.0, 0.0, 2.2), (1.0, 0.0, 0.0, 1.0, 0.0, 0.45), (1.0, 0.0, 0.0, 1.0, 0.0, 0.45))
HANDLES = ((0.25, 2.59, 1.0), (-1.73, 0.0, 0.6), (1e4, 1e4, 0.0))
CUBE, TALL = (0.04, 0.04, 0.04), (0.03, 0.03, 0.12)
NUM_OBJECTS = 4


def world(num: int = 1) -> World:
    walls = torch.tensor([[[-5.1, -5, -5, 5], [5, -5, 5.1, 5], [-5, -5.1, 5, -5], [-5, 5, 5, 5.1]]])
    rects = torch.cat((walls, torch.tensor([[_rect(TABLE), _rect(FRIDGE), _rect(CABINET_TOP)]])), 1)
    grown = rects + torch.tensor([-1, -1, 1, 1]) * 0.2506
    moving = [DOOR, (*HANDLES[0], 0.015, 0.03, 0.15, 0.0), DRAWER_BOTTOM, DRAWER_FRONT, FAR]
    parts = World(
        static=torch.tensor([[TABLE, FRIDGE, CABINET_TOP]]),
        contact=boxed(grown),
        joints=torch.tensor([JOINTS]),
        moving=torch.tensor([moving]),
        moving_joint=torch.tensor([[0, 0, 1, 1, 2]]),
        handles=torch.tensor([HANDLES]),
        extents=torch.tensor([[CUBE, TALL, CUBE, CUBE]]),
    )
    return World(*(part.repeat(num, *[1] * (part.dim() - 1)) for part in parts))


def state(num: int = 1, pose: tuple[float, float, float] = (1.0, 0.0, 0.0), **changes) -> State:
    """Object 0 lies on the table in front of the robot, 1 beside it, 2 on the floor far away, 3 in the drawer."""
    objects = [(1.7, 0.0, 0.79, 0.3), (1.7, 0.5, 0.87, 0.0), (-4.0, 4.0, 0.04, 0.0), (-2.0, 0.1, 0.55, 0.0)]
    made = State(
        pose=torch.tensor([pose]),
        angles=torch.tensor([REST_ANGLES]),
        values=torch.zeros(1, 3),
        objects=torch.tensor([objects]),
        object_joint=torch.tensor([[NOTHING, NOTHING, NOTHING, 1]]),
        held=torch.tensor([NOTHING]),
        grasp=torch.zeros(1, 4),
    )
    return State(*(part.repeat(num, *[1] * (part.dim() - 1)) for part in made._replace(**changes)))


def depth(around: World, now: State) -> torch.Tensor:
    return depths(around, now, arm_of(now))


def _rect(box) -> tuple[float, float, float, float]:
    x, y, _, ex, ey, *_ = box
    return x - ex, y - ey, x + ex, y + ey
