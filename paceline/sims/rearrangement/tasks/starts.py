"""Where episodes begin: near the target, within the arm's reach of it, or anywhere.

Legend: N robots, T objects with goals, P starts per target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.sims.randomness import below, combine
from paceline.sims.rearrangement.config import WITH_OPEN_FRIDGE, RearrangementConfig
from paceline.sims.rearrangement.physics.world import FRIDGE, NOTHING, NUM_JOINTS, in_drawers
from paceline.sims.rearrangement.tasks.protocol import EpisodeDraw

TARGET, PLACE, OPENING, CARRIES = range(1, 5)
"""Purposes of random numbers."""


@dataclass(frozen=True)
class Starts:
    """The starts that a bank has drawn, as a configuration wants them."""

    bank: Any
    config: RearrangementConfig

    @property
    def num_targets(self) -> int:
        """T."""
        return self.bank.goals.shape[2]

    def target(self, draw: EpisodeDraw) -> Tensor:
        """int64 [N]: one of the objects with goals."""
        return below(combine(draw.keys, TARGET), self.num_targets)

    def near(self, draw: EpisodeDraw, targets: Tensor) -> Tensor:
        """[N, 3]: poses for `targets` (int64 [N]): objects are 0 to T - 1, the goal of object t is T + t."""
        if self.config.start == "far":
            return self.far(draw)
        if not self.config.base:
            return self.bank.stands[draw.scenes, draw.episodes, targets]
        number = targets % self.num_targets
        before_object, before_goal = (
            starts[draw.scenes, draw.episodes, number, self._number(draw, starts)]
            for starts in (self.bank.object_starts, self.bank.goal_starts)
        )
        return torch.where((targets < self.num_targets)[:, None], before_object, before_goal)

    def far(self, draw: EpisodeDraw) -> Tensor:
        return self.bank.far_starts[draw.scenes, draw.episodes, self._number(draw, self.bank.far_starts)]

    def before_handle(self, draw: EpisodeDraw, joint: Tensor) -> Tensor:
        if self.config.start == "far":
            return self.far(draw)
        return self.bank.joint_starts[draw.scenes, joint, self._number(draw, self.bank.joint_starts)]

    def uniform(self, draw: EpisodeDraw, purpose: int) -> Tensor:
        """[N]: uniform numbers in [0, 1)."""
        return (combine(draw.keys, purpose) >> 8).float() * 2.0**-24

    def nothing(self, draw: EpisodeDraw) -> Tensor:
        """int64 [N]: an empty hand."""
        return torch.full_like(draw.scenes, NOTHING)

    def open_for(self, draw: EpisodeDraw, targets: Tensor) -> Tensor:
        """[N, J]: doors and drawers are closed, but for what one has to open to get at `targets`."""
        number = targets % self.num_targets
        inside = self.bank.object_joint[draw.scenes, draw.episodes, number]
        inside = torch.where(targets < self.num_targets, inside, NOTHING)
        joints = torch.arange(NUM_JOINTS, device=inside.device)
        is_open = joints == inside[:, None]
        if self.config.scenario in WITH_OPEN_FRIDGE:
            is_open = is_open | (joints == FRIDGE)
        return torch.where(is_open, self.bank.joints[draw.scenes][..., 5], 0.0)

    def places(self, scenes: Tensor, episodes: Tensor) -> Tensor:
        """[N, 2T, 3]: where objects with goals are at the start, with their drawers open, and their goals."""
        bank, at = self.bank, (scenes, episodes)
        joints, inside = bank.joints[scenes], bank.object_joint[at][:, : self.num_targets]
        objects = in_drawers(joints, bank.objects[at][:, : self.num_targets], inside, joints[..., 5])
        return torch.cat((objects[..., :3], bank.goals[at]), 1)

    def _number(self, draw: EpisodeDraw, starts: Tensor) -> Tensor:
        return below(combine(draw.keys, PLACE), starts.shape[-2])
