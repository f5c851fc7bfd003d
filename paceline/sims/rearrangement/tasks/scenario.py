"""Scenarios: bring several objects to their goals. The policy is told the next object, or the goal of the one it holds.

Legend: N robots, T objects with goals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sims.rearrangement.config import SCENARIOS, WITH_OPEN_FRIDGE
from paceline.sims.rearrangement.physics.world import FRIDGE, NUM_JOINTS
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw, Facts, SkillJudgement, SkillStart, row
from paceline.sims.rearrangement.tasks.rewards import CLOSE, COLLISION
from paceline.sims.rearrangement.tasks.starts import Starts

PICKED, PLACED, SUCCESS, SLACK = 1.0, 1.0, 100.0, -0.01


class ScenarioSkill:
    """A `Skill`. Its columns are, for each object that has to be moved, whether it was ever picked, and placed."""

    num_steps = 3000
    parts = ("arm", "grip", "base")
    measure_names = ("success", "picked", "placed")

    def __init__(self, starts: Starts) -> None:
        self._starts, self._num = starts, SCENARIOS[starts.config.scenario]
        self.num_columns = 2 * self._num

    def begin(self, draw: EpisodeDraw) -> SkillStart:
        joints = torch.arange(NUM_JOINTS, device=draw.scenes.device)
        is_open = (joints == FRIDGE) & (self._starts.config.scenario in WITH_OPEN_FRIDGE)
        values = torch.where(is_open, self._starts.bank.joints[draw.scenes][..., 5], 0.0)
        columns = torch.zeros(len(draw.scenes), self.num_columns, device=draw.scenes.device)
        return SkillStart(self._starts.far(draw), self._starts.nothing(draw), values, columns)

    def first(self, columns: Tensor, facts: Facts) -> Tensor:
        return columns

    def judge(self, columns: Tensor, facts: Facts) -> SkillJudgement:
        picked_before, placed_before = columns.view(len(columns), 2, -1).unbind(1)
        held = facts.state.held[:, None] == torch.arange(self._num, device=columns.device)
        picked = torch.maximum(picked_before, held.float())
        there = self._is_placed(facts)
        placed = torch.maximum(placed_before, there.float() * picked)
        success = there.all(1)
        reward = SLACK + facts.collided * COLLISION + PICKED * (picked - picked_before).sum(1)
        reward = reward + PLACED * (placed - placed_before).sum(1) + SUCCESS * success
        measures = {"success": success.float(), "picked": picked.mean(1), "placed": there.float().mean(1)}
        return SkillJudgement(reward, success, torch.cat((picked, placed), 1), measures)

    def target(self, columns: Tensor, facts: Facts) -> Tensor:
        """The goal of the object in the hand, or the first place of the first object that is not at its goal."""
        at, held = (facts.scenes, facts.episodes), facts.state.held
        goals, objects = self._starts.bank.goals[at], self._starts.bank.objects[at]
        first = (~self._is_placed(facts)).float().argmax(1)
        carries = (held >= 0) & (held < self._num)
        return torch.where(carries[:, None], row(goals, held.clamp(0, self._num - 1)), row(objects, first)[:, :3])

    def _is_placed(self, facts: Facts) -> Tensor:
        """bool [N, T]."""
        goals = self._starts.bank.goals[facts.scenes, facts.episodes][:, : self._num]
        near = (facts.state.objects[:, : self._num, :3] - goals).norm(dim=2) < CLOSE
        return near & (facts.state.held[:, None] != torch.arange(self._num, device=near.device))
