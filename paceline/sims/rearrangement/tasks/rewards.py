"""What the rewards of all tasks have in common."""

from __future__ import annotations

from torch import Tensor

from paceline.sims.rearrangement.tasks.protocol import Facts

SLACK = -0.005
"""Of every step."""
COLLISION = -0.01
"""Of a step whose motion something stops."""
CLOSE = 0.15
"""Within this distance of its place, an object is placed and the hand rests, in metres."""


def costs(facts: Facts) -> Tensor:
    """[N]: of a step."""
    return facts.collided * COLLISION + SLACK
