"""Pick: take an object and bring it to the resting place of the hand.

Taking something else, or letting the object go, ends the episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw, Facts, SkillJudgement, SkillStart, row
from paceline.sims.rearrangement.tasks.rewards import CLOSE, costs
from paceline.sims.rearrangement.tasks.starts import Starts

SHAPING, PICKED, MISTAKE, SUCCESS = 2.0, 2.0, -0.5, 10.0
OBJECT, DISTANCE, HELD = range(3)


class PickSkill:
    """A `Skill`. The distance is that from tip to object. Once it is held, it is that from the tip to its resting
    place."""

    num_steps = 300
    parts = ("arm", "grip", "base")
    num_columns = 3
    measure_names = ("success", "picked", "mistake")

    def __init__(self, starts: Starts) -> None:
        self._starts = starts

    def begin(self, draw: EpisodeDraw) -> SkillStart:
        target = self._starts.target(draw)
        columns = torch.stack((target, target * 0, target * 0), 1).float()
        pose, values = self._starts.near(draw, target), self._starts.open_for(draw, target)
        return SkillStart(pose, self._starts.nothing(draw), values, columns)

    def first(self, columns: Tensor, facts: Facts) -> Tensor:
        return torch.stack((columns[:, OBJECT], self._distance(columns, facts), columns[:, HELD]), 1)

    def judge(self, columns: Tensor, facts: Facts) -> SkillJudgement:
        target, held_before = columns[:, OBJECT].long(), columns[:, HELD] > 0.5
        held = facts.state.held == target
        distance = self._distance(columns, facts)
        mistake = ((facts.taken != NOTHING) & (facts.taken != target)) | (facts.dropped == target)
        success = held & (facts.rest_distance < CLOSE)
        nearer = torch.where(held == held_before, columns[:, DISTANCE] - distance, 0.0)
        reward = (
            costs(facts) + SHAPING * nearer + PICKED * (held & ~held_before) + MISTAKE * mistake + SUCCESS * success
        )
        measures = {"success": success.float(), "picked": held.float(), "mistake": mistake.float()}
        return SkillJudgement(
            reward, success | mistake, torch.stack((columns[:, OBJECT], distance, held.float()), 1), measures
        )

    def target(self, columns: Tensor, facts: Facts) -> Tensor:
        """Where the object was at the start."""
        return row(self._starts.places(facts.scenes, facts.episodes), columns[:, OBJECT].long())

    def _distance(self, columns: Tensor, facts: Facts) -> Tensor:
        target = columns[:, OBJECT].long()
        to_object = (row(facts.state.objects, target)[:, :3] - facts.tip).norm(dim=1)
        return torch.where(facts.state.held == target, facts.rest_distance, to_object)
