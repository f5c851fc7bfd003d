"""Navigate: drive to an object, or with an object to its goal, turn towards it, and stop.

A stop counts only within `STOPPING` of the target. The policy knows how far that is, and a stop elsewhere is always
wrong.

Shaping is the decrease of the geodesic distance to a place where the arm reaches the target. Near it, the decrease of
the angle to the target is added.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.sims.navigation.scenes.paths import Destinations, Paths
from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw, Facts, SkillJudgement, SkillStart, row
from paceline.sims.rearrangement.tasks.rewards import costs
from paceline.sims.rearrangement.tasks.starts import CARRIES, Starts

SUCCESS = 10.0
NEAR, AHEAD = 1.5, 0.262
"""Success needs at most this distance from the target (metres, over the floor) and this angle (radians)."""
STOPPING = 2.0
"""Distance from which a stop ends the episode, in metres."""
TURNING_FROM = 3.0
"""Distance from which the angle counts, in metres."""
CARRYING = 1.0 / 6.0
"""Share of episodes with an object in the hand."""
TARGET, DISTANCE, ANGLE = range(3)


class NavigateSkill:
    """A `Skill`. Targets are numbered as in `Starts.near`."""

    num_steps = 400
    parts = ("base", "stop")
    num_columns = 3
    measure_names = ("success", "distance", "angle")

    def __init__(self, starts: Starts) -> None:
        self._starts, self._paths = starts, Paths(starts.bank)
        self._paths.scenes_changed()

    def begin(self, draw: EpisodeDraw) -> SkillStart:
        target = self._starts.target(draw)
        carries = self._starts.uniform(draw, CARRIES) < CARRYING
        number = torch.where(carries, target + self._starts.num_targets, target)
        columns = torch.stack((number, number * 0, number * 0), 1).float()
        values = self._starts.open_for(draw, number)
        return SkillStart(self._starts.far(draw), torch.where(carries, target, NOTHING), values, columns)

    def first(self, columns: Tensor, facts: Facts) -> Tensor:
        return torch.stack((columns[:, TARGET], self._path(columns, facts), self._angle(columns, facts)), 1)

    def judge(self, columns: Tensor, facts: Facts) -> SkillJudgement:
        path, angle = self._path(columns, facts), self._angle(columns, facts)
        distance = (self.target(columns, facts)[:, :2] - facts.state.pose[:, :2]).norm(dim=1)
        stopped = facts.stopped & (distance < STOPPING)
        success = stopped & (distance < NEAR) & (angle < AHEAD)
        turned = torch.where(distance < TURNING_FROM, columns[:, ANGLE] - angle, 0.0)
        reward = costs(facts) + (columns[:, DISTANCE] - path) + turned + SUCCESS * success
        measures = {"success": success.float(), "distance": distance, "angle": angle}
        return SkillJudgement(reward, stopped, torch.stack((columns[:, TARGET], path, angle), 1), measures)

    def target(self, columns: Tensor, facts: Facts) -> Tensor:
        return row(self._starts.places(facts.scenes, facts.episodes), columns[:, TARGET].long())

    def _path(self, columns: Tensor, facts: Facts) -> Tensor:
        bank, number = self._starts.bank, columns[:, TARGET].long()
        stands = bank.stands[facts.scenes, facts.episodes, number]
        table_row = facts.episodes * bank.stands.shape[2] + number
        to = Destinations(facts.scenes, bank.stand_distances, table_row, stands[:, None, :2])
        return self._paths.lengths(facts.state.pose[:, :2], to)

    def _angle(self, columns: Tensor, facts: Facts) -> Tensor:
        """[N]: between the heading and the direction of the target, 0 to pi."""
        way = self.target(columns, facts)[:, :2] - facts.state.pose[:, :2]
        turn = torch.atan2(way[:, 1], way[:, 0]) - facts.state.pose[:, 2]
        return (torch.remainder(turn + math.pi, 2.0 * math.pi) - math.pi).abs()
