"""The scripts of the tasks.

Legend: R robots in a phase.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.rearrangement.evaluation.oracle.driving import (
    BackUp,
    Drive,
    EndEpisode,
    FaceTarget,
    Rest,
    is_about_there,
    within_reach,
)
from paceline.sims.rearrangement.evaluation.oracle.handles import (
    Pull,
    ReachHandle,
    TakeHandle,
    stands_before_handle,
)
from paceline.sims.rearrangement.evaluation.oracle.phases import Phase, RobotView
from paceline.sims.rearrangement.evaluation.oracle.reaching import (
    RAISED,
    Lift,
    Lower,
    Pose,
    Reach,
    Release,
    Take,
    above_goal,
    above_object,
    at_goal,
    top_of,
)
from paceline.sims.rearrangement.evaluation.oracle.stands import stands_of
from paceline.sims.rearrangement.robot.arm import REST_ANGLES
from paceline.sims.rearrangement.simulator import Rearrangement
from paceline.sims.rearrangement.tasks.navigate import AHEAD, NEAR
from paceline.sims.rearrangement.tasks.protocol import row


class Script(NamedTuple):
    phases: tuple[Phase, ...]
    instead: tuple[int, ...]
    """For each phase: the phase after it has failed."""


def _pick(simulator: Rearrangement, guide: Guide) -> Script:
    stands = stands_of(simulator.bank, lambda view: view.notes.target, top_of)
    phases = (
        Pose(RAISED),
        Drive(simulator.config, guide, stands, RAISED, within_reach(guide, top_of)),
        Reach(above_object),
        Take(),
        Lift(0.15),
        BackUp(0.35),
        Rest(),
    )
    return Script(phases, (1, 0, 0, 0, 5, 6, 6))


def _place(simulator: Rearrangement, guide: Guide) -> Script:
    bank = simulator.bank
    num = bank.goals.shape[2]

    def goals(view: RobotView) -> Tensor:
        return bank.goals[view.scenes, view.episodes, view.notes.target]

    stands = stands_of(bank, lambda view: view.notes.target + num, goals)
    phases = (
        Pose(RAISED),
        Drive(simulator.config, guide, stands, RAISED, within_reach(guide, goals)),
        Reach(above_goal(goals)),
        Lower(at_goal(goals)),
        Release(),
        Lift(0.1),
        BackUp(0.3),
        Rest(),
    )
    return Script(phases, (1, 0, 0, 0, 4, 6, 7, 7))


def _navigate(simulator: Rearrangement, guide: Guide) -> Script:
    bank = simulator.bank

    def stands(view: RobotView) -> Tensor:
        return bank.stands[view.scenes, view.episodes, view.notes.target]

    def targets(view: RobotView) -> Tensor:
        at = (view.scenes, view.episodes)
        return row(torch.cat((bank.objects[at][:, : bank.goals.shape[2], :3], bank.goals[at]), 1), view.notes.target)

    def is_near(view: RobotView) -> Tensor:
        """A target can be near on the other side of a table."""
        way = guide.distances(view.pose[:, :2], view.rows)
        return ((targets(view)[:, :2] - view.pose[:, :2]).norm(dim=1) < NEAR - 0.1) & (way < ALMOST)

    phases = (Drive(simulator.config, guide, stands, None, is_near), FaceTarget(targets, 0.5 * AHEAD), EndEpisode())
    return Script(phases, (0, 0, 0))


ALMOST = 0.6
"""Length of the way to the stand from which navigation stops, in metres."""


def _joint(simulator: Rearrangement, guide: Guide, value: float) -> Script:
    """Moves the joint to `value`."""
    config = simulator.config

    def wanted(view: RobotView) -> Tensor:
        return torch.full_like(view.pose[:, 0], value)

    phases = (
        Drive(config, guide, stands_before_handle(value), REST_ANGLES, is_about_there),
        ReachHandle(),
        TakeHandle(),
        Pull(wanted, config.forward_step, config.turn_step, config.arm_step),
        Release(),
        BackUp(0.25),
        Rest(),
    )
    return Script(phases, (0, 5, 5, 4, 4, 6, 0))


JOINT_GOALS = {"open_drawer": 0.44, "close_drawer": 0.0, "open_fridge": 1.22, "close_fridge": 0.0}
"""The value that the joint shall have."""


SCRIPTS: dict[str, Callable[[Rearrangement, Guide], Script]] = {
    "navigate": _navigate,
    "pick": _pick,
    "place": _place,
    **{task: partial(_joint, value=value) for task, value in JOINT_GOALS.items()},
}
"""The tasks that the oracle plays."""
