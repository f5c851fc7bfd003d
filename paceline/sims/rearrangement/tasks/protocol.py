"""`Skill`: what the simulator asks of a task.

Legend: N robots, O objects, T objects with goals, J joints of the house, C columns of the task.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.sims.rearrangement.physics.world import State


class EpisodeDraw(NamedTuple):
    """New episodes of N robots."""

    scenes: Tensor
    """int64 [N]."""
    episodes: Tensor
    """int64 [N]: the number within the scene."""
    keys: Tensor
    """int64 [N]: random keys of the episodes."""


class SkillStart(NamedTuple):
    """How an episode begins."""

    pose: Tensor
    """[N, 3]: of the base."""
    carried: Tensor
    """int64 [N]: the object in the hand; -1 for none."""
    values: Tensor
    """[N, J]: of doors and drawers."""
    columns: Tensor
    """[N, C]: what the task remembers."""


class Facts(NamedTuple):
    """What a step has come to."""

    scenes: Tensor
    episodes: Tensor
    state: State
    tip: Tensor
    """[N, 3]: the tip of the suction cup."""
    rest_distance: Tensor
    """[N]: of the tip from its place when the arm rests."""
    taken: Tensor
    """int64 [N]: what was taken in this step; -1 for nothing."""
    dropped: Tensor
    """int64 [N]: what was let go in this step."""
    collided: Tensor
    """bool [N]: whether a part of the commanded motion would have hit something."""
    stopped: Tensor
    """bool [N]: whether the policy ended the episode."""


class SkillJudgement(NamedTuple):
    """What a step was worth."""

    reward: Tensor
    """[N]."""
    terminated: Tensor
    """bool [N]."""
    columns: Tensor
    """[N, C]: what the task remembers from now on."""
    measures: dict[str, Tensor]
    """[N] each. They are final where the episode ends with this step."""


class Skill(Protocol):
    """A task of N robots. No method waits for the device."""

    num_steps: int
    """Episodes are truncated after so many steps."""
    parts: tuple[str, ...]
    """What the policy commands: arm, grip, base and stop, or some of these, in this order."""
    num_columns: int
    """C."""
    measure_names: tuple[str, ...]

    def begin(self, draw: EpisodeDraw) -> SkillStart: ...

    def first(self, columns: Tensor, facts: Facts) -> Tensor:
        """[N, C]: the columns of episodes that have just begun, with the distances of their first step."""
        ...

    def judge(self, columns: Tensor, facts: Facts) -> SkillJudgement: ...

    def target(self, columns: Tensor, facts: Facts) -> Tensor:
        """[N, 3]: the place that the policy is told."""
        ...


def row(values: Tensor, numbers: Tensor) -> Tensor:
    """[N, ...]: `values` [N, X, ...] at `numbers` (int64 [N]) of the second dimension."""
    return values[torch.arange(len(numbers), device=numbers.device), numbers]
