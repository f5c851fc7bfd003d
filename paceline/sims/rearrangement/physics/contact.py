"""`depths`: how deep robots, and what they move, are inside other things.

Legend: N robots, R rows, L links of the arm, B boxes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.rearrangement.physics.shapes import capsule_depths, floor_distances, gaps
from paceline.sims.rearrangement.physics.world import (
    NUM_JOINTS,
    State,
    World,
    handle_places,
    held_box,
    moving_boxes,
    object_boxes,
    obstacles,
    repeated,
)
from paceline.sims.rearrangement.robot.arm import LINK_RADII, Arm, forward_kinematics
from paceline.sims.rearrangement.robot.body import HEIGHT, OWN_BODY, RADIUS

SLACK = 0.05
"""How far a handle may be from the place where it is held, in metres: suction cups give."""


def depths(world: World, state: State, arm: Arm, only: Tensor | None = None) -> Tensor:
    """[R]: the depth of the worst penetration in metres, at least 0. Outside `only` (bool [R]) it is 0.

    `arm` is that of the state, in the world. The rows of the state are in the order of `moved`: row r is about robot
    r % N of the world.
    """
    if state.pose.is_cuda:
        # Imported here, because Triton is installed only with CUDA.
        from paceline.sims.rearrangement.physics import contact_triton

        return contact_triton.depths(world, state, arm, SLACK, only)
    if only is None:
        return tensor_depths(world, state, arm)
    rows = only.nonzero()[:, 0]
    result = torch.zeros_like(state.pose[:, 0])
    if len(rows):
        some, states = World(*(part[rows % len(part)] for part in world)), State(*(part[rows] for part in state))
        result[rows] = tensor_depths(some, states, Arm(*(point[rows] for point in arm)))
    return result


def tensor_depths(world: World, state: State, arm: Arm) -> Tensor:
    """`depths` for a CPU. A kernel computes the same on a GPU."""
    world = repeated(world, len(state.pose) // len(world.static))
    everything = obstacles(world, state)
    return torch.stack(
        (
            _of_base(world, state, everything),
            _of_arm(world, state, arm, everything),
            _of_arm_in_body(state),
            _of_held(world, state, everything),
            _of_pulled(world, state, arm),
        )
    ).amax(0)


def _of_base(world: World, state: State, everything: Tensor) -> Tensor:
    """The base inside doors, drawers and objects. `move` keeps it out of the static boxes."""
    boxes = everything[:, world.static.shape[1] :]
    above = boxes[..., 2] - boxes[..., 5] >= HEIGHT
    inside = (RADIUS - floor_distances(state.pose[:, :2], boxes)).masked_fill_(above, 0.0)
    return inside.amax(1).clamp_(min=0.0)


def _of_arm(world: World, state: State, arm: Arm, everything: Tensor) -> Tensor:
    starts, ends = arm.links()
    num_static, num_moving = world.static.shape[1], world.moving.shape[1]
    counted = torch.ones(*starts.shape[:2], everything.shape[1], dtype=torch.bool, device=starts.device)
    # The hand touches the door or drawer that it pulls.
    pulled = world.moving_joint + world.extents.shape[1] == state.held[:, None]
    counted[:, 2, num_static : num_static + num_moving] = ~pulled
    radii = constant(LINK_RADII, starts)
    in_floor = (radii - torch.minimum(starts[..., 2], ends[..., 2])).amax(1)
    return torch.maximum(capsule_depths(starts, ends, radii, everything, counted), in_floor)


def _of_arm_in_body(state: State) -> Tensor:
    """Forearm and hand inside the robot's own trunk and head."""
    starts, ends = (points[:, 1:] for points in forward_kinematics(state.angles).links())
    boxes = constant(OWN_BODY, starts).expand(len(starts), -1, -1)
    radii = constant(LINK_RADII[1:], starts)
    counted = torch.ones(*starts.shape[:2], boxes.shape[1], dtype=torch.bool, device=starts.device)
    return capsule_depths(starts, ends, radii, boxes, counted)


def _of_held(world: World, state: State, everything: Tensor) -> Tensor:
    """The object in the hand inside other things, the floor or the robot."""
    box = held_box(world, state)
    x, y, heading = state.pose.unbind(1)
    own = constant(OWN_BODY, box)
    cos, sin = heading.cos()[:, None], heading.sin()[:, None]
    ahead = own[:, 0]  # the body's boxes are in the middle
    body = torch.stack((x[:, None] + cos * ahead, y[:, None] + sin * ahead), 2)
    rest = own[:, 2:6].expand(len(box), -1, -1)
    body = torch.cat((body, rest, heading[:, None, None].expand(-1, len(own), 1)), 2)
    inside = -gaps(box, torch.cat((everything, body), 1)).amin(1)
    return torch.maximum(inside, box[:, 5] - box[:, 2]).clamp_(min=0.0)


def _of_pulled(world: World, state: State, arm: Arm) -> Tensor:
    """The door or drawer in the hand: whether the hand is too far from its handle, and what it runs into."""
    num = world.extents.shape[1]
    rows = (state.held >= num).nonzero()[:, 0]
    result = torch.zeros_like(state.grasp[:, 0])
    if len(rows):
        some, states = World(*(part[rows] for part in world)), State(*(part[rows] for part in state))
        result[rows] = _of_all_pulled(some, states, arm.tip[rows])
    return result


def _of_all_pulled(world: World, state: State, tips: Tensor) -> Tensor:
    num = world.extents.shape[1]
    joint = (state.held - num).clamp(0, NUM_JOINTS - 1)
    handle = handle_places(world, state.values).gather(1, joint[:, None, None].expand(-1, 1, 3))[:, 0]
    strain = (handle - tips).norm(dim=1) - state.grasp[:, 1] - SLACK
    boxes, objects = moving_boxes(world, state.values), object_boxes(world, state)
    mine = world.moving_joint == joint[:, None]
    inside_mine = state.object_joint == joint[:, None]
    hits = [strain.clamp_(min=0.0)]
    for number in range(num):
        box, rides = objects[:, number], inside_mine[:, number, None] & (joint > 0)[:, None]
        # An object in the drawer can hit the cabinet, any other one the drawer or door.
        hits.append(_deepest(box, world.static, rides))
        hits.append(_deepest(box, boxes, torch.where(rides, ~mine, mine)))
    return torch.stack(hits).amax(0)


def _deepest(box: Tensor, boxes: Tensor, counted: Tensor) -> Tensor:
    return (-gaps(box, boxes)).masked_fill_(~counted, 0.0).amax(1).clamp_(min=0.0)
