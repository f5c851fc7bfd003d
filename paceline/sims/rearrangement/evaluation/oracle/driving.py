"""Phases of the base: drive along the shortest path, turn, and go back.

Legend: R robots in a phase.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from paceline.sims.navigation.evaluation.guide import Guide
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.evaluation.oracle.detours import detours
from paceline.sims.rearrangement.evaluation.oracle.phases import RobotMove, RobotView, wrapped
from paceline.sims.rearrangement.robot.arm import REST_ANGLES

ARRIVED, ALIGNED, AHEAD = 0.02, 0.02, 0.35
"""At the stand (metres), at its heading (radians), and the angle within which the robot drives (radians)."""
BACKWARD = 0.4
"""A stand that is behind the robot and nearer than this is reached backwards, in metres."""

LEAST, WAITED = range(2)
"""Columns of `Notes.progress`."""
LONGEST_TURN = 3.75
"""A robot gives up a stand if the way that is left has not become shorter by one step in the time of this turn, in
radians. It may have to turn round first."""
TURN = 0.1
"""Metres per radian that is left to turn at the stand."""

CLOSE_BY, REACH, SIDEWAYS = 0.12, (0.43, 0.7), 0.4
"""Where a robot need not go on to its stand: the way that is left, the distance from the target (metres), and the angle
to it (radians)."""


class Drive:
    """Drives to a stand and turns to its heading, with the arm at `angles`, or as it is. Blocked robots try detours."""

    def __init__(
        self,
        config: RearrangementConfig,
        guide: Guide,
        stands: Callable[[RobotView], Tensor],
        angles: tuple[float, ...] | None,
        arrived: Callable[[RobotView], Tensor] | None = None,
    ) -> None:
        """`arrived` says which robots are near enough (bool [R]), in place of those at their stands."""
        self._guide, self._stands, self._angles, self._arrived = guide, stands, angles, arrived
        self._step, self._most_waited = config.forward_step, round(LONGEST_TURN / config.turn_step)
        usual = RearrangementConfig()
        slowness = max(usual.forward_step / config.forward_step, usual.turn_step / config.turn_step)
        self.patience = round(250 * slowness)

    def enter(self, view: RobotView) -> None:
        view.notes.stand.copy_(self._stands(view))
        view.notes.detour.zero_()
        view.notes.progress[:, LEAST] = torch.inf
        view.notes.progress[:, WAITED] = 0.0
        places = view.notes.stand[:, :2].cpu().numpy()
        for row, scene, place in zip(view.rows.tolist(), view.scenes.tolist(), places, strict=True):
            self._guide.lead(row, scene, place)

    def move(self, view: RobotView) -> RobotMove:
        stands = view.notes.stand
        blocked = (view.notes.still >= 2) & (view.notes.detour[:, 0] <= 0.0)
        rows = blocked.nonzero()[:, 0]
        if len(rows):
            view.notes.detour[rows] = detours(view, rows, self._guide, self.steer)
        is_detour = view.notes.detour[:, 0] > 0.0
        base = torch.where(is_detour[:, None], view.notes.detour[:, 1:], self.steer(view.pose, view.rows, stands))
        view.notes.detour[:, 0].sub_(1.0).clamp_(min=0.0)
        there = (stands[:, :2] - view.pose[:, :2]).norm(dim=1) < ARRIVED
        done = there & (wrapped(stands[:, 2] - view.pose[:, 2]).abs() < ALIGNED)
        if self._arrived is not None:
            done = done | self._arrived(view)
        return RobotMove(
            angles_or_same(view, self._angles), base, view.holds(), done, fails=self._does_not_get_on(view)
        )

    def _does_not_get_on(self, view: RobotView) -> Tensor:
        """bool [R]: robots whose way to the stand has not become shorter for a while."""
        left, progress = self._guide.distances(view.pose[:, :2], view.rows), view.notes.progress
        left = left + TURN * wrapped(view.notes.stand[:, 2] - view.pose[:, 2]).abs() * (left < BACKWARD)
        nearer = left < progress[:, LEAST] - self._step
        progress[:, LEAST] = torch.where(nearer, left, progress[:, LEAST])
        progress[:, WAITED] = torch.where(nearer, 0.0, progress[:, WAITED] + 1.0)
        return progress[:, WAITED] > self._most_waited

    def steer(self, poses: Tensor, rows: Tensor, stands: Tensor) -> Tensor:
        """[R, 2]: the motions of robots at `poses` [R, 3] towards `stands` [R, 3], without limits."""
        way = self._guide.next_places(poses[:, :2], rows) - poses[:, :2]
        left = (stands[:, :2] - poses[:, :2]).norm(dim=1)
        turn = wrapped(torch.atan2(way[:, 1], way[:, 0]) - poses[:, 2])
        is_behind = (left < BACKWARD) & (turn.abs() > 0.5 * torch.pi)
        turn = torch.where(is_behind, wrapped(turn + torch.pi), turn)
        length = torch.minimum(left, way.norm(dim=1)) * torch.where(is_behind, -1.0, 1.0)
        forward = torch.where(turn.abs() < AHEAD, length, 0.0)
        there = left < ARRIVED
        turn = torch.where(there, wrapped(stands[:, 2] - poses[:, 2]), turn)
        return torch.stack((torch.where(there, 0.0, forward), turn), 1)


def is_about_there(view: RobotView) -> Tensor:
    """bool [R]: robots that are near enough to their stands to take a handle."""
    near = (view.notes.stand[:, :2] - view.pose[:, :2]).norm(dim=1) < 0.06
    return near & (wrapped(view.notes.stand[:, 2] - view.pose[:, 2]).abs() < 0.15)


def within_reach(guide: Guide, targets: Callable[[RobotView], Tensor]) -> Callable[[RobotView], Tensor]:
    """Which robots (bool [R]) are close to their stands, and can take or put something at `targets` [R, 3]."""

    def arrived(view: RobotView) -> Tensor:
        way = targets(view)[:, :2] - view.pose[:, :2]
        length, turn = way.norm(dim=1), wrapped(torch.atan2(way[:, 1], way[:, 0]) - view.pose[:, 2])
        is_close = guide.distances(view.pose[:, :2], view.rows) < CLOSE_BY
        return is_close & (length > REACH[0]) & (length < REACH[1]) & (turn.abs() < SIDEWAYS)

    return arrived


class FaceTarget:
    """Turns towards `targets`. A robot that is blocked goes back."""

    patience = 90

    def __init__(self, targets: Callable[[RobotView], Tensor], closely: float) -> None:
        self._targets, self._closely = targets, closely

    def enter(self, view: RobotView) -> None:
        view.notes.detour.zero_()

    def move(self, view: RobotView) -> RobotMove:
        way = self._targets(view)[:, :2] - view.pose[:, :2]
        turn = wrapped(torch.atan2(way[:, 1], way[:, 0]) - view.pose[:, 2])
        # After a blocked turn, the robot goes back for some steps, and after that forward.
        to_go_back = view.notes.detour[:, 0]
        to_go_back.copy_(torch.where((view.notes.still >= 2) & (to_go_back <= 0), 4.0, to_go_back))
        back = torch.where(to_go_back > 0, torch.where(view.notes.still > 4, 0.05, -0.05), 0.0)
        to_go_back.sub_(1.0).clamp_(min=0.0)
        base = torch.stack((back, torch.where(back != 0.0, 0.0, turn)), 1)
        return RobotMove(view.state.angles, base, view.holds(), turn.abs() < self._closely)


class BackUp:
    """Goes back by `length` metres, or until something is in the way."""

    patience = 10

    def __init__(self, length: float) -> None:
        self._length = length

    def enter(self, view: RobotView) -> None:
        view.notes.point.copy_(view.pose)

    def move(self, view: RobotView) -> RobotMove:
        gone = (view.pose[:, :2] - view.notes.point[:, :2]).norm(dim=1)
        left = (self._length - gone).clamp(min=0.0)
        done = (left < ARRIVED) | (view.notes.still > 2)
        base = torch.stack((-left, torch.zeros_like(left)), 1)
        return RobotMove(view.state.angles, base, view.holds(), done)


class EndEpisode:
    """Ends the episode."""

    patience = 10

    def enter(self, view: RobotView) -> None:
        pass

    def move(self, view: RobotView) -> RobotMove:
        always = torch.ones_like(view.rows, dtype=torch.bool)
        return RobotMove(view.state.angles, torch.zeros_like(view.pose[:, :2]), view.holds(), ~always, always)


class Rest:
    """Brings the arm to rest. A robot whose arm is blocked goes back, or turns if it cannot."""

    patience = 200

    def enter(self, view: RobotView) -> None:
        pass

    def move(self, view: RobotView) -> RobotMove:
        still = view.notes.still
        back = torch.where((still > 1) & (still < 5), -0.05, 0.0)
        turn = torch.where(still >= 5, 0.075, 0.0)
        wanted = angles_or_same(view, REST_ANGLES)
        done = (wanted - view.state.angles).abs().amax(1) < 1e-3
        return RobotMove(wanted, torch.stack((back, turn), 1), view.holds(), done)


def angles_or_same(view: RobotView, angles: tuple[float, ...] | None) -> Tensor:
    """[R, 7]: `angles` for all robots, or where their arms are."""
    if angles is None:
        return view.state.angles
    return torch.tensor([angles], device=view.pose.device).expand_as(view.state.angles)
