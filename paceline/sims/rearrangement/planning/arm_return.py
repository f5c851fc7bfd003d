"""Between two skills of a plan, the arm goes back to its resting angles.

Every skill is trained from there. A skill ends with the hand near its resting place, but the joints may be turned in
many ways, so that the next skill would see an arm that it has never seen. Habitat's plans have the same stage.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.physics.world import NOTHING, State
from paceline.sims.rearrangement.robot.arm import REST_ANGLES
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw, Facts, SkillJudgement, SkillStart

AT_REST = 0.01
"""Largest difference of a joint from its resting angle, in radians."""
LONGEST_TURN = 2.5
"""In radians."""


class ArmReturn:
    """A `Skill` that only plans have. It ends when the arm is at rest."""

    num_steps = 50
    """With the default step of the arm; see `return_steps`."""
    parts: tuple[str, ...] = ("arm", "grip")
    num_columns = 1
    measure_names: tuple[str, ...] = ("success",)

    def begin(self, draw: EpisodeDraw) -> SkillStart:
        raise NotImplementedError("a return only follows another skill")

    def first(self, columns: Tensor, facts: Facts) -> Tensor:
        return columns

    def judge(self, columns: Tensor, facts: Facts) -> SkillJudgement:
        at_rest = _turns(facts.state).abs().amax(1) < AT_REST
        return SkillJudgement(at_rest.float(), at_rest, columns, {"success": at_rest.float()})

    def target(self, columns: Tensor, facts: Facts) -> Tensor:
        return facts.tip


def return_steps(config: RearrangementConfig) -> int:
    """The steps that every joint has to return, but for a roll by more than 2.5 rad: by default 50, as in Habitat."""
    return math.ceil(LONGEST_TURN / config.arm_step) + config.behind


def homewards(state: State, arm_step: float) -> Tensor:
    """[N, 8]: the actions (arm and grip) that bring the arm to rest, and hold what is held."""
    holds = torch.where(state.held == NOTHING, -1.0, 1.0)
    return torch.cat(((_turns(state) / arm_step).clamp(-1.0, 1.0), holds[:, None]), 1)


def _turns(state: State) -> Tensor:
    """[N, 7]: from the angles to those at rest."""
    return constant(REST_ANGLES, state.angles) - state.angles
