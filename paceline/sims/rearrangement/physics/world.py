"""`World`: what is around N robots. `State`: where everything is that can move.

Joints are those of the house, doors and drawers. A hinge turns its boxes about a vertical axis by its value in radians,
a slide moves them by its value in metres. At 0 they are closed.

Legend: N robots, S static boxes, J joints, M boxes of doors and drawers, O objects.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.rearrangement.robot.arm import PAN, REST_ANGLES, Arm
from paceline.sims.rearrangement.robot.placing import placed_arm

NUM_JOINTS = 3
FRIDGE, UPPER_DRAWER, LOWER_DRAWER = range(NUM_JOINTS)
NOTHING = -1
"""The number of what is held, for an empty hand. Objects are 0 to O - 1, the handle of joint j is O + j."""
ELSEWHERE = 1e4
"""A coordinate far from every house, in metres."""


class World(NamedTuple):
    """What does not change during an episode."""

    static: Tensor
    """[N, S, 7]: upright boxes (centre, half extents, yaw) along the axes: their yaw is 0."""
    contact: Tensor
    """[N, Q, 4]: rectangles that stop the centre of the base; see `SceneBank`."""
    joints: Tensor
    """[N, J, 6]: whether it slides; x and y of a hinge's axis; for a hinge 1 (opens counter-clockwise) or -1, for a
    slide its direction as x and y; the largest value."""
    moving: Tensor
    """[N, M, 7]: the boxes of doors and drawers when they are closed."""
    moving_joint: Tensor
    """int64 [N, M]: the joint of each."""
    handles: Tensor
    """[N, J, 3]: the handles when closed."""
    extents: Tensor
    """[N, O, 3]: half extents of the objects."""


class State(NamedTuple):
    """What changes."""

    pose: Tensor
    """[N, 3]: x, y and heading of the base."""
    angles: Tensor
    """[N, 7]: of the arm."""
    values: Tensor
    """[N, J]: of doors and drawers."""
    objects: Tensor
    """[N, O, 4]: x, y, z of the centre and yaw."""
    object_joint: Tensor
    """int64 [N, O]: the drawer that an object lies in, or another joint or -1 without a meaning."""
    held: Tensor
    """int64 [N]: see `NOTHING`."""
    grasp: Tensor
    """[N, 4]: how it is held. An object: its centre as seen from the tip, in the frame of the arm's pan, and its yaw
    there. It stays upright: the cup swivels. A handle: the value of the joint minus that of the tip's projection, and
    the distance from tip to handle."""


def resting_state(
    world: World, pose: Tensor, values: Tensor, objects: Tensor, object_joint: Tensor, carried: Tensor
) -> State:
    """Robots at `pose` [N, 3] with the arm at rest. What they carry (int64 [N], see `NOTHING`) hangs below the tip."""
    num = len(pose)
    angles = constant(REST_ANGLES, pose).repeat(num, 1)
    tip = placed_arm(angles, pose).tip
    heights = world.extents[..., 2].gather(1, carried.clamp(min=0)[:, None])
    none = torch.zeros_like(heights)
    grasp = torch.cat((none, none, -heights, none), 1)
    held = torch.arange(objects.shape[1], device=pose.device) == carried[:, None]
    hanging = torch.cat((tip + grasp[:, :3], pose[:, 2:] + angles[:, PAN, None]), 1)
    return State(
        pose=pose,
        angles=angles,
        values=values,
        objects=torch.where(held[..., None], hanging[:, None], objects),
        object_joint=torch.where(held, NOTHING, object_joint),
        held=carried,
        grasp=grasp,
    )


def repeated(world: World, several: int) -> World:
    """The world of `several` times as many robots."""
    if several == 1:
        return world
    return World(*(part.repeat(several, *[1] * (part.dim() - 1)) for part in world))


def arm_of(state: State) -> Arm:
    """The arm in the world."""
    return placed_arm(state.angles, state.pose)


def is_object(held: Tensor, num_objects: int) -> Tensor:
    return (held >= 0) & (held < num_objects)


def moving_boxes(world: World, values: Tensor) -> Tensor:
    """[N, M, 7]: the boxes of doors and drawers where they are."""
    rows = world.moving_joint[..., None].expand(-1, -1, 6)
    slides, x, y, dx, dy, _ = world.joints.gather(1, rows).unbind(2)
    value = values.gather(1, world.moving_joint)
    cx, cy, cz, *extents, yaw = world.moving.unbind(2)
    turned_x, turned_y, turn = _turned_about(cx, cy, x, y, dx * value)
    is_slide = slides > 0.5
    cx, cy = torch.where(is_slide, cx + dx * value, turned_x), torch.where(is_slide, cy + dy * value, turned_y)
    return torch.stack((cx, cy, cz, *extents, torch.where(is_slide, yaw, yaw + turn)), 2)


def handle_places(world: World, values: Tensor) -> Tensor:
    """[N, J, 3]: the handles where they are."""
    return handle_position(world.joints, world.handles, values)


def handle_position(joints: Tensor, closed: Tensor, values: Tensor) -> Tensor:
    """[..., 3]: handles that are at `closed` [..., 3] when `joints` [..., 6] are closed, at `values` [...]."""
    slides, x, y, dx, dy, _ = joints.unbind(-1)
    hx, hy, hz = closed.unbind(-1)
    turned_x, turned_y, _ = _turned_about(hx, hy, x, y, dx * values)
    is_slide = slides > 0.5
    moved = torch.where(is_slide, hx + dx * values, turned_x), torch.where(is_slide, hy + dy * values, turned_y)
    return torch.stack((*moved, hz), -1)


def projections(world: World, points: Tensor) -> Tensor:
    """[..., N, J]: the value at which each handle would be nearest to `points` [..., N, 3], without limits."""
    slides, x, y, dx, dy, _ = world.joints.unbind(-1)
    hx, hy, _ = world.handles.unbind(-1)
    px, py = points[..., 0, None], points[..., 1, None]
    turn = torch.atan2(py - y, px - x) - torch.atan2(hy - y, hx - x)
    turn = torch.remainder(turn + math.pi, 2.0 * math.pi) - math.pi
    return torch.where(slides > 0.5, (px - hx) * dx + (py - hy) * dy, turn * dx)


def object_boxes(world: World, state: State) -> Tensor:
    """[N, O, 7]: the objects as boxes."""
    return torch.cat((state.objects[..., :3], world.extents, state.objects[..., 3:]), 2)


def obstacles(world: World, state: State) -> Tensor:
    """[N, S + M + O, 7]: everything that a robot can hit. What it holds is elsewhere."""
    objects = object_boxes(world, state)
    held = torch.arange(objects.shape[1], device=objects.device) == state.held[:, None]
    objects = torch.cat((objects[..., :3].masked_fill(held[..., None], ELSEWHERE), objects[..., 3:]), 2)
    return torch.cat((world.static, moving_boxes(world, state.values), objects), 1)


def held_box(world: World, state: State) -> Tensor:
    """[N, 7]: the object in the hand as a box; elsewhere without one."""
    num = world.extents.shape[1]
    row = state.held.clamp(0, num - 1)[:, None, None].expand(-1, 1, 7)
    box = object_boxes(world, state).gather(1, row)[:, 0]
    away = ~is_object(state.held, num)
    return torch.cat((box[:, :3].masked_fill(away[:, None], ELSEWHERE), box[:, 3:]), 1)


def moved(world: World, state: State, pose: Tensor, angles: Tensor) -> tuple[State, Arm]:
    """The state after the robot has moved, with what it holds. Nothing is checked.

    `pose` [..., N, 3] and `angles` [..., N, 7] may be several candidates for each robot. Then the state has several
    times as many rows too: row c * N + n is candidate c of robot n.
    """
    arm = placed_arm(angles.flatten(0, -2), pose.flatten(0, -2))
    tip = arm.tip.view(pose.shape)
    num = world.extents.shape[1]
    joints = torch.arange(NUM_JOINTS, device=pose.device)
    pulled = state.held[:, None] == joints + num
    wanted = projections(world, tip) + state.grasp[:, :1]
    values = torch.where(pulled, torch.minimum(wanted.clamp(min=0.0), world.joints[..., 5]), state.values)
    objects = _carried(world, state, pose, angles, tip, values - state.values)
    same = (part.expand(*pose.shape[:-2], *part.shape) for part in (state.object_joint, state.held, state.grasp))
    after = State(pose, angles, values, objects, *same)
    return State(*(part.flatten(0, pose.dim() - 2) for part in after)), arm


def _carried(world: World, state: State, pose: Tensor, angles: Tensor, tip: Tensor, opened: Tensor) -> Tensor:
    """[..., N, O, 4]: the objects after the hand moved to `tip` and the joints by `opened` [..., N, J]."""
    num = world.extents.shape[1]
    yaw = pose[..., 2] + angles[..., PAN]
    cos, sin = yaw.cos(), yaw.sin()
    dx, dy, dz, turn = state.grasp.unbind(1)
    place = torch.stack(
        (tip[..., 0] + cos * dx - sin * dy, tip[..., 1] + sin * dx + cos * dy, tip[..., 2] + dz, yaw + turn), -1
    )
    objects = in_drawers(world.joints, state.objects, state.object_joint, opened)
    held = torch.arange(num, device=tip.device) == state.held[:, None]
    return torch.where(held[..., None], place[..., None, :], objects)


def in_drawers(joints: Tensor, objects: Tensor, object_joint: Tensor, opened: Tensor) -> Tensor:
    """[..., N, O, 4]: `objects` [N, O, 4] after `joints` [N, J, 6] have moved by `opened` [..., N, J]: those in drawers
    move with them."""
    slid = joints[..., :1] * joints[..., 3:5] * opened[..., None]  # [..., N, J, 2]
    # An object in no drawer is in joint J here, which never moves. Nothing moves up or turns.
    slid = torch.nn.functional.pad(slid, (0, 2, 0, 1))
    inside = torch.where(object_joint > FRIDGE, object_joint, NUM_JOINTS)
    return objects + slid.gather(-2, inside[..., None].expand(*slid.shape[:-2], -1, 4))


def _turned_about(px: Tensor, py: Tensor, x: Tensor, y: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    cos, sin = turn.cos(), turn.sin()
    return x + cos * (px - x) - sin * (py - y), y + sin * (px - x) + cos * (py - y), turn
