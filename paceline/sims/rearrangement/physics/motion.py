"""Motion up to the first contact: first the base with everything on it, then the arm.

Each part tries shares of what was commanded, in rising order, and keeps the largest before the first one that would
penetrate something. Shares are small enough that nothing passes through a thin panel between two of them. A robot that
penetrates something already, by rounding, may move as long as it gets no deeper.

Legend: N robots.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    now = _try(world, now, [_with_base(world, state, base * share, slide) for share in BASE_SHARES])
    low, high = constant(LIMITS, turns).unbind(1)
    start = now.state
    wanted = [torch.clamp(start.angles + turns * share, low, high) for share in ARM_SHARES]
    still = torch.zeros_like(depth)
    return _try(world, now, [_Candidate(start.pose, angles, now.collided, still) for angles in wanted])


class _Candidate(NamedTuple):
    pose: Tensor
    angles: Tensor
    collided: Tensor
    travelled: Tensor


def _with_base(world: World, state: State, base: Tensor, slide: bool) -> _Candidate:
    heading = state.pose[:, 2] + base[:, 1]
    step = torch.stack((heading.cos(), heading.sin()), 1) * base[:, :1]
    walk = move(state.pose[:, :2], step, world.contact, slide)
    pose = torch.cat((walk.position, heading[:, None]), 1)
    return _Candidate(pose, state.angles, walk.collided, walk.travelled)


def _try(world: World, start: Moved, candidates: list[_Candidate]) -> Moved:
    """The last of `candidates` that can be reached, or `start`. All are tested at once."""
    several = len(candidates)
    every = _Candidate(*map(torch.cat, zip(*candidates, strict=True)))
    worlds, states = (_repeated(parts, several) for parts in (world, start.state))
    state, arm = moved(worlds, states, every.pose, every.angles)
    depth = depths(worlds, state, arm)
    allowed = torch.maximum(start.depth, torch.full_like(start.depth, TOUCHING))
    is_free = depth.view(several, -1) <= allowed
    num_free = is_free.cumprod(0).sum(0)  # before the first that is not
    all_free = num_free == several
    rows = (num_free - 1).clamp(min=0) * len(allowed) + torch.arange(len(allowed), device=allowed.device)

    def chosen(tried: Tensor, old: Tensor) -> Tensor:
        return torch.where((num_free > 0).view(-1, *[1] * (old.dim() - 1)), tried[rows], old)

    return Moved(
        State(*map(chosen, state, start.state)),
        Arm(*map(chosen, arm, start.arm)),
        chosen(depth, start.depth),
        start.collided | chosen(every.collided, start.collided) | ~all_free,
        start.travelled + chosen(every.travelled, torch.zeros_like(start.travelled)),
    )


def _repeated(parts: Any, several: int) -> Any:
    """A `World` or `State` of `several` times as many robots."""
    return type(parts)(*(part.repeat(several, *[1] * (part.dim() - 1)) for part in parts))
