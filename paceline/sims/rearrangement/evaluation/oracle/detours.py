"""Detours of robots whose arm, or what it holds, is blocked: short motions, after which they can drive on.

Shortest paths are those of the base alone. So the arm can hit walls beside the path.

Legend: R robots, C candidates.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.navigation.scenes.geometry import move
from paceline.sims.rearrangement.evaluation.oracle.phases import RobotView, wrapped
from paceline.sims.rearrangement.physics.contact import depths
from paceline.sims.rearrangement.physics.motion import TOUCHING
from paceline.sims.rearrangement.physics.world import State, World, moved

DETOUR = tuple(
    (steps, forward, turn)
    for steps in (4.0, 10.0)
    for forward in (-0.05, 0.0, 0.05)
    for turn in (-0.075, -0.0375, 0.0, 0.0375, 0.075)
    if forward or turn
)
"""The candidates: steps, forward in metres and left turn in radians."""
HORIZON = 18
"""Steps that are foreseen."""
TURN_COST = 0.2
"""Metres per radian."""
_LIMITS = (0.05, 0.075)

Steer = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From poses, numbers of robots and stands to motions; see `Drive.steer`."""


def detours(view: RobotView, rows: Tensor, guide: Guide, steer: Steer) -> Tensor:
    """[R, 3]: the best candidates for the robots `rows` of `view`, by the way that is left after `HORIZON` steps."""
    count = len(DETOUR)
    each = rows.repeat_interleave(count)
    candidates = torch.tensor(DETOUR, device=rows.device).repeat(len(rows), 1)
    world, state = World(*(part[each] for part in view.world)), State(*(part[each] for part in view.state))
    streams, stands = view.rows[each], view.notes.stand[each]
    most = torch.tensor(_LIMITS, device=rows.device)
    for number in range(HORIZON):
        steered = steer(state.pose, streams, stands)
        base = torch.where((number < candidates[:, 0])[:, None], candidates[:, 1:], steered)
        state = driven(world, state, base.clamp(-most, most))
    left = guide.distances(state.pose[:, :2], streams)
    ahead = guide.next_places(state.pose[:, :2], streams) - state.pose[:, :2]
    is_there = (stands[:, :2] - state.pose[:, :2]).norm(dim=1) < 0.05
    heading = torch.where(is_there, stands[:, 2], torch.atan2(ahead[:, 1], ahead[:, 0]))
    cost = left + TURN_COST * wrapped(heading - state.pose[:, 2]).abs()
    best = cost.view(-1, count).argmin(1)
    return torch.tensor(DETOUR, device=rows.device)[best]


def driven(world: World, state: State, base: Tensor) -> State:
    """The state after a motion of the base [R, 2]. A robot that would hit something stays."""
    heading = state.pose[:, 2] + base[:, 1]
    way = torch.stack((heading.cos(), heading.sin()), 1) * base[:, :1]
    place = move(state.pose[:, :2], way, world.contact, True).position
    after, arm = moved(world, state, torch.cat((place, heading[:, None]), 1), state.angles)
    free = depths(world, after, arm) <= TOUCHING
    return State(
        *(torch.where(free.view(-1, *[1] * (old.dim() - 1)), new, old) for new, old in zip(after, state, strict=True))
    )
