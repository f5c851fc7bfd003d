"""Place: bring the object in the hand to its goal, let it go, and move the hand to its resting place.

Letting it go elsewhere, or taking something afterwards, ends the episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw, Facts, SkillJudgement, SkillStart, row
from paceline.sims.rearrangement.tasks.rewards import CLOSE, costs
from paceline.sims.rearrangement.tasks.starts import Starts

SHAPING, PLACED, MISTAKE, SUCCESS = 2.0, 5.0, -0.5, 10.0
OBJECT, DISTANCE, DONE = range(3)


class PlaceSkill:
    """A `Skill`. The distance is that from object to goal, as long as it is above `CLOSE`, and that from the tip to its
    resting place afterwards."""

    num_steps = 300
    parts = ("arm", "grip", "base")
    num_columns = 3
    measure_names = ("success", "placed", "mistake")

    def __init__(self, starts: Starts) -> None:
        self._starts = starts

    def begin(self, draw: EpisodeDraw) -> SkillStart:
        target = self._starts.target(draw)
        goal = target + self._starts.num_targets
        columns = torch.stack((target, target * 0, target * 0), 1).float()
        return SkillStart(self._starts.near(draw, goal), target, self._starts.open_for(draw, goal), columns)

    def first(self, columns: Tensor, facts: Facts) -> Tensor:
        return torch.stack((columns[:, OBJECT], self._to_goal(columns, facts).clamp(min=CLOSE), columns[:, DONE]), 1)

    def judge(self, columns: Tensor, facts: Facts) -> SkillJudgement:
        target, done_before = columns[:, OBJECT].long(), columns[:, DONE] > 0.5
        to_goal = self._to_goal(columns, facts)
        lets_go = facts.dropped == target
        placed = lets_go & (to_goal < CLOSE)
        done = done_before | placed
        mistake = (lets_go & ~placed) | (facts.taken != NOTHING)
        success = done & ~mistake & (facts.rest_distance < CLOSE)
        distance = torch.where(done, facts.rest_distance, to_goal.clamp(min=CLOSE))
        nearer = torch.where(done == done_before, columns[:, DISTANCE] - distance, 0.0)
        reward = costs(facts) + SHAPING * nearer + PLACED * placed + MISTAKE * mistake + SUCCESS * success
        measures = {"success": success.float(), "placed": done.float(), "mistake": mistake.float()}
        return SkillJudgement(
            reward, success | mistake, torch.stack((columns[:, OBJECT], distance, done.float()), 1), measures
        )

    def target(self, columns: Tensor, facts: Facts) -> Tensor:
        goals = self._starts.bank.goals[facts.scenes, facts.episodes]
        return row(goals, columns[:, OBJECT].long())

    def _to_goal(self, columns: Tensor, facts: Facts) -> Tensor:
        target = columns[:, OBJECT].long()
        return (row(facts.state.objects, target)[:, :3] - self.target(columns, facts)).norm(dim=1)
