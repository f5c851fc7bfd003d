"""Motion up to the first contact: first the base with everything on it, then the arm.

Each part tries shares of what was commanded, in rising order, and keeps the largest before the first one that would
penetrate something. Shares are small enough that nothing passes through a thin panel between two of them. A robot that
penetrates something already, by rounding, may move as long as it gets no deeper.

Legend: N robots, C candidates.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.navigation.scenes.geometry import move
from paceline.sims.rearrangement.physics.contact import depths
from paceline.sims.rearrangement.physics.world import State, World, moved
from paceline.sims.rearrangement.robot.arm import LIMITS, Arm

BASE_SHARES = (0.5, 1.0)
ARM_SHARES = (0.25, 0.5, 1.0)
TOUCHING = 1e-4
"""Depths up to this are contact, not penetration, in metres."""


class Moved(NamedTuple):
    """The result of a motion."""

    state: State
    arm: Arm
    depth: Tensor
    """[N]: see `depths`."""
    collided: Tensor
    """bool [N]: whether a part of the motion was left out."""
    travelled: Tensor
    """[N]: the way of the base in metres."""


def advance(world: World, state: State, arm: Arm, depth: Tensor, base: Tensor, turns: Tensor, slide: bool) -> Moved:
    """Move by `base` [N, 2] (forward in metres, left turn in radians) and by `turns` [N, 7] of the arm's joints."""
    now = Moved(state, arm, depth, torch.zeros_like(depth, dtype=torch.bool), torch.zeros_like(depth))
    now = _try(world, now, _with_base(world, state, base, slide))
    low, high = constant(LIMITS, turns).unbind(1)
    angles = torch.clamp(now.state.angles + turns * _shares(ARM_SHARES, turns), low, high)
    pose = now.state.pose.expand(len(angles), -1, -1)
    collided, still = now.collided.expand(len(angles), -1), torch.zeros_like(angles[..., 0])
    return _try(world, now, _Candidates(pose, angles, collided, still))


class _Candidates(NamedTuple):
    """C motions of each robot, in rising order."""

    pose: Tensor
    """[C, N, 3]."""
    angles: Tensor
    """[C, N, 7]."""
    collided: Tensor
    """bool [C, N]."""
    travelled: Tensor
    """[C, N]."""


def _shares(values: tuple[float, ...], like: Tensor) -> Tensor:
    """[C, 1, 1]."""
    return constant(values, like)[:, None, None]


def _with_base(world: World, state: State, base: Tensor, slide: bool) -> _Candidates:
    base = base * _shares(BASE_SHARES, base)
    several, num, _ = base.shape
    heading = state.pose[:, 2] + base[..., 1]
    step = torch.stack((heading.cos(), heading.sin()), 2) * base[..., :1]
    walk = move(state.pose[:, :2].repeat(several, 1), step.flatten(0, 1), world.contact.repeat(several, 1, 1), slide)
    pose = torch.cat((walk.position.view(several, num, 2), heading[..., None]), 2)
    return _Candidates(
        pose,
        state.angles.expand(several, -1, -1),
        walk.collided.view(several, num),
        walk.travelled.view(several, num),
    )


def _try(world: World, start: Moved, candidates: _Candidates) -> Moved:
    """The last of `candidates` that can be reached, or `start`. All are tested at once."""
    several, num = candidates.collided.shape
    state, arm = moved(world, start.state, candidates.pose, candidates.angles)
    depth = depths(world, state, arm)
    is_free = depth.view(several, num) <= start.depth.clamp(min=TOUCHING)
    num_free = is_free.cumprod(0).sum(0)  # before the first that is not
    moves = num_free > 0
    rows = (num_free - 1).clamp(min=0) * num + torch.arange(num, device=depth.device)

    def chosen(tried: Tensor, old: Tensor) -> Tensor:
        return torch.where(moves.view(-1, *[1] * (old.dim() - 1)), tried[rows], old)

    before = start.state
    return Moved(
        before._replace(
            pose=chosen(state.pose, before.pose),
            angles=chosen(state.angles, before.angles),
            values=chosen(state.values, before.values),
            objects=chosen(state.objects, before.objects),
        ),
        Arm(*map(chosen, arm, start.arm)),
        chosen(depth, start.depth),
        start.collided | chosen(candidates.collided.flatten(), start.collided) | (num_free < several),
        start.travelled + chosen(candidates.travelled.flatten(), torch.zeros_like(start.travelled)),
    )
