"""The suction cup: it takes what its tip touches. What it lets go falls straight down to what is below.

Legend: N robots, O objects, J joints, B boxes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.rearrangement.physics.shapes import footprint_gaps, point_distances
from paceline.sims.rearrangement.physics.world import (
    FRIDGE,
    NOTHING,
    NUM_JOINTS,
    State,
    World,
    handle_places,
    is_object,
    moving_boxes,
    object_boxes,
    projections,
)
from paceline.sims.rearrangement.robot.arm import PAN, Arm

MARGIN = 0.03
"""The tip touches what is within this distance, in metres."""
HANDLE_MARGIN = 0.05
"""The same from the centre of a handle, which is a bar of about 3 cm."""
_RESTS = 1e-3
"""An object rests on a surface at most this far above its lower side."""


class Gripped(NamedTuple):
    state: State
    taken: Tensor
    """int64 [N]: what was taken in this step; see `NOTHING`."""
    dropped: Tensor
    """int64 [N]: what was let go in this step."""


def grip(world: World, state: State, arm: Arm, closes: Tensor) -> Gripped:
    """Take the nearest thing where `closes` (bool [N]) and the hand is empty, and let go where it does not close."""
    opens = (state.held != NOTHING) & ~closes
    dropped = torch.where(opens, state.held, NOTHING)
    state = _fallen(world, state, dropped)
    state = state._replace(held=torch.where(opens, NOTHING, state.held))
    found = torch.where(closes & (state.held == NOTHING), _touched(world, state, arm.tip), NOTHING)
    takes = found != NOTHING
    grasp = torch.where(takes[:, None], grasp_of(world, state, arm.tip, found), state.grasp)
    lifted = torch.arange(state.objects.shape[1], device=found.device) == found[:, None]
    return Gripped(
        state._replace(
            held=torch.where(takes, found, state.held),
            grasp=grasp,
            object_joint=torch.where(lifted, NOTHING, state.object_joint),
        ),
        found,
        dropped,
    )


def _touched(world: World, state: State, tips: Tensor) -> Tensor:
    """int64 [N]: the nearest object or handle within reach of the tips [N, 3]."""
    objects = object_boxes(world, state)
    to_objects = point_distances(tips, objects).masked_fill_(_are_covered(objects), torch.inf)
    to_handles = (handle_places(world, state.values) - tips[:, None]).norm(dim=2)
    spare = torch.cat((to_objects - MARGIN, to_handles - HANDLE_MARGIN - MARGIN), 1)
    nearest = spare.min(1)
    return torch.where(nearest.values <= 0.0, nearest.indices, NOTHING)


def _are_covered(objects: Tensor) -> Tensor:
    """bool [N, O]: which of `objects` [N, O, 7] have another one on top. The cup does not lift them."""
    num = objects.shape[1]
    lower, upper = objects.repeat_interleave(num, 1).flatten(0, 1), objects.repeat(1, num, 1).flatten(0, 1)[:, None]
    apart = footprint_gaps(lower, upper).view(-1, num, num)
    bottoms, tops = objects[..., 2] - objects[..., 5], objects[..., 2] + objects[..., 5]
    return ((apart < 0.0) & ((bottoms[:, None] - tops[..., None]).abs() < _RESTS)).any(2)


def grasp_of(world: World, state: State, tips: Tensor, found: Tensor) -> Tensor:
    """[N, 4]: how `found` is held; see `State.grasp`. For a handle, the second number is its distance."""
    num = state.objects.shape[1]
    row = found.clamp(0, num - 1)
    thing = state.objects.gather(1, row[:, None, None].expand(-1, 1, 4))[:, 0]
    yaw = state.pose[:, 2] + state.angles[:, PAN]
    cos, sin = yaw.cos(), yaw.sin()
    dx, dy, dz = (thing[:, :3] - tips).unbind(1)
    of_object = torch.stack((cos * dx + sin * dy, cos * dy - sin * dx, dz, thing[:, 3] - yaw), 1)
    joint = (found - num).clamp(0, NUM_JOINTS - 1)[:, None]
    ahead = (state.values - projections(world, tips)).gather(1, joint)
    apart = (handle_places(world, state.values) - tips[:, None]).norm(dim=2).gather(1, joint)
    of_handle = torch.cat((ahead, apart, torch.zeros_like(dx)[:, None].expand(-1, 2)), 1)
    return torch.where((found < num)[:, None], of_object, of_handle)


def _fallen(world: World, state: State, dropped: Tensor) -> State:
    """The state after the objects `dropped` (int64 [N]) have fallen."""
    num = state.objects.shape[1]
    falls = is_object(dropped, num)
    row = dropped.clamp(0, num - 1)[:, None, None]
    objects = object_boxes(world, state)
    box = objects.gather(1, row.expand(-1, 1, 7))[:, 0]
    itself = torch.arange(num, device=dropped.device) == dropped[:, None]
    below = torch.cat((world.static, moving_boxes(world, state.values), objects), 1)
    tops = below[..., 2] + below[..., 5]
    bottom = (box[:, 2] - box[:, 5])[:, None]
    supports = (footprint_gaps(box, below) < 0.0) & (tops <= bottom + _RESTS)
    supports[:, -num:] &= ~itself
    height, which = torch.where(supports, tops, 0.0).max(1)
    # In a drawer lies what stands on one of its boxes, or on something that lies in it.
    joints = torch.cat(
        (
            torch.full(world.static.shape[:2], NOTHING, device=dropped.device),
            world.moving_joint,
            state.object_joint,
        ),
        1,
    )
    joint = torch.where(height > 0.0, joints.gather(1, which[:, None])[:, 0], NOTHING)
    joint = torch.where(joint == FRIDGE, NOTHING, joint)
    lands = (itself & falls[:, None])[..., None]
    place = torch.cat(
        (state.objects[..., :2], (height + box[:, 5])[:, None, None].expand(-1, num, 1), state.objects[..., 3:]), 2
    )
    return state._replace(
        objects=torch.where(lands, place, state.objects),
        object_joint=torch.where(lands[..., 0], joint[:, None], state.object_joint),
    )
