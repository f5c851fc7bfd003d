"""Open and close: take the handle of the fridge or of a drawer, move it, let it go, and bring the hand to rest.

Taking anything else ends the episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.randomness import below, combine
from paceline.sims.rearrangement.config import DRAWER_STARTS, FRIDGE_STARTS
from paceline.sims.rearrangement.physics.world import (
    FRIDGE,
    NOTHING,
    NUM_JOINTS,
    UPPER_DRAWER,
    handle_position,
)
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw, Facts, SkillJudgement, SkillStart, row
from paceline.sims.rearrangement.tasks.rewards import CLOSE, COLLISION
from paceline.sims.rearrangement.tasks.starts import OPENING, TARGET, Starts

OPENED, GRASPED, REACHED, MISTAKE, SUCCESS = 10.0, 5.0, 5.0, -5.0, 10.0
TO_REST = {True: 1.0, False: 10.0}
"""Weight of the way to the resting place: of the fridge, and of drawers."""
FRIDGE_OPEN, DRAWER_OPEN = 1.2208, 0.45
"""What counts as open, in radians and in metres."""
WITHIN = 0.05
JOINT, LEFT, HANDLE, REST, GRASPED_ONCE, REACHED_ONCE = range(6)
"""Columns: the joint, how far it is from where it should be, distances of the tip from the handle and from its resting
place, and two flags."""


NUM_STEPS, CLOSING_FRIDGE = 200, 300
"""Steps of an episode. A door that is open by 120 degrees has a long way, and the robot has to go around it first."""


class JointSkill:
    """A `Skill` for the fridge or for the drawers."""

    parts = ("arm", "grip", "base")
    num_columns = 6
    measure_names = ("success", "grasped", "reached", "mistake")

    def __init__(self, starts: Starts, *, fridge: bool, opens: bool) -> None:
        self._starts, self._fridge, self._opens = starts, fridge, opens
        self.num_steps = CLOSING_FRIDGE if fridge and not opens else NUM_STEPS

    def begin(self, draw: EpisodeDraw) -> SkillStart:
        if self._fridge:
            joint = torch.full_like(draw.scenes, FRIDGE)
        else:
            joint = below(combine(draw.keys, TARGET), NUM_JOINTS - 1) + UPPER_DRAWER
        values = constant(FRIDGE_STARTS if self._fridge else DRAWER_STARTS, self._starts.bank.joints)
        value = values[below(combine(draw.keys, OPENING), len(values))]
        is_open = (torch.arange(NUM_JOINTS, device=joint.device) == joint[:, None]) & (not self._opens)
        values = torch.where(is_open, value[:, None], 0.0)
        columns = torch.cat((joint[:, None].float(), torch.zeros_like(values).repeat(1, 2)[:, :5]), 1)
        return SkillStart(self._starts.before_handle(draw, joint), self._starts.nothing(draw), values, columns)

    def first(self, columns: Tensor, facts: Facts) -> Tensor:
        flags = columns[:, GRASPED_ONCE:]
        return torch.cat((columns[:, :1], self._distances(columns, facts), flags), 1)

    def judge(self, columns: Tensor, facts: Facts) -> SkillJudgement:
        handle = columns[:, JOINT].long() + facts.state.objects.shape[1]
        distances = self._distances(columns, facts)
        nearer = columns[:, LEFT : REST + 1] - distances
        grasped_before, reached_before = columns[:, GRASPED_ONCE] > 0.5, columns[:, REACHED_ONCE] > 0.5
        grasped = grasped_before | (facts.taken == handle)
        in_place = distances[:, 0] <= WITHIN
        reached = reached_before | in_place
        mistake = (facts.taken != NOTHING) & (facts.taken != handle)
        success = in_place & (facts.state.held == NOTHING) & (facts.rest_distance < CLOSE)
        reward = facts.collided * COLLISION + OPENED * nearer[:, 0] + torch.where(grasped, 0.0, nearer[:, 1])
        reward = reward + TO_REST[self._fridge] * torch.where(reached_before, nearer[:, 2], 0.0)
        reward = reward + GRASPED * (grasped & ~grasped_before) + REACHED * (reached & ~reached_before)
        reward = reward + MISTAKE * mistake + SUCCESS * success
        flags = torch.stack((grasped, reached), 1).float()
        measures = {"success": success, "grasped": grasped, "reached": in_place, "mistake": mistake}
        return SkillJudgement(
            reward,
            success | mistake,
            torch.cat((columns[:, :1], distances, flags), 1),
            {name: value.float() for name, value in measures.items()},
        )

    def target(self, columns: Tensor, facts: Facts) -> Tensor:
        """The handle of the closed door or drawer."""
        return row(self._starts.bank.handles[facts.scenes], columns[:, JOINT].long())

    def _distances(self, columns: Tensor, facts: Facts) -> Tensor:
        """[N, 3]: the columns from LEFT to REST."""
        bank, joint = self._starts.bank, columns[:, JOINT].long()
        value = facts.state.values.gather(1, joint[:, None])[:, 0]
        wanted = (FRIDGE_OPEN if self._fridge else DRAWER_OPEN) if self._opens else 0.0
        left = (wanted - value).clamp(min=0.0) if self._opens else value
        rows = bank.joints[facts.scenes, joint]
        handle = handle_position(rows, bank.handles[facts.scenes, joint], value)
        return torch.stack((left, (handle - facts.tip).norm(dim=1), facts.rest_distance), 1)
