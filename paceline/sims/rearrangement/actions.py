"""The actions of a task: numbers in [-1, 1] for the arm, the grip, the base and the stop, as far as the task has them.

Legend: N robots, A numbers of an action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.sims.constants import constant
from paceline.sims.rearrangement.config import RearrangementConfig
from paceline.sims.rearrangement.physics.world import NOTHING
from paceline.sims.rearrangement.robot.arm import NUM_JOINTS

SIZES = {"arm": NUM_JOINTS, "grip": 1, "base": 2, "stop": 1}
"""Numbers of each part. Arm: turns of the joints. Grip: above 0 to hold. Base: forward and left turn. Stop: above 0."""


class RobotCommand(NamedTuple):
    turns: Tensor
    """[N, 7]: of the arm's joints, in radians."""
    base: Tensor
    """[N, 2]: forward in metres, left turn in radians."""
    closes: Tensor
    """bool [N]: whether the suction cup holds."""
    stops: Tensor
    """bool [N]."""


class Actions:
    """Reads actions."""

    def __init__(self, parts: Sequence[str], config: RearrangementConfig) -> None:
        self.parts = tuple(part for part in parts if config.base or part != "base")
        self.size = sum(SIZES[part] for part in self.parts)
        """A."""
        self._arm_step, self._base_steps = config.arm_step, (config.forward_step, config.turn_step)

    def first(self, carried: Tensor) -> Tensor:
        """[N, A]: what stands for the action before the first one: nothing moves, and what is carried (int64 [N], see
        `NOTHING`) is held."""
        parts = [torch.zeros(len(carried), SIZES[part], device=carried.device) for part in self.parts]
        if "grip" in self.parts:
            parts[self.parts.index("grip")][:, 0] = (carried != NOTHING).float()
        return torch.cat(parts, 1)

    def read(self, actions: Tensor, held: Tensor) -> RobotCommand:
        """The command of `actions` [N, A]. Without a grip, the hand keeps what it has (`held`, see `State`)."""
        parts = dict(
            zip(self.parts, actions.clamp(-1.0, 1.0).split([SIZES[part] for part in self.parts], 1), strict=True)
        )
        num = len(actions)
        base = parts.get("base", actions.new_zeros(num, 2)) * constant(self._base_steps, actions)
        return RobotCommand(
            parts.get("arm", actions.new_zeros(num, NUM_JOINTS)) * self._arm_step,
            base,
            parts["grip"][:, 0] > 0.0 if "grip" in parts else held != NOTHING,
            parts["stop"][:, 0] > 0.0 if "stop" in parts else torch.zeros_like(held, dtype=torch.bool),
        )
