"""`Handover`: what one learner gives to another that takes over its policy."""

from __future__ import annotations

from typing import Any, TypedDict


class Handover(TypedDict):
    """It can travel between ranks (`paceline.distributed.gather`)."""

    weights: dict[str, Any]
    """Of the policy, with the normalisers of observations."""
    agent: dict[str, Any]
    """The `state_dict` of the learner: optimiser and hyper-parameters."""
    targets: dict[str, Any]
    """The scale of returns."""
