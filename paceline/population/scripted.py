"""`ScriptedOpponent`: what a scripted opponent of self-play looks like."""

from __future__ import annotations

from typing import Protocol

from gymnasium import spaces
from torch import Tensor


class ScriptedOpponent(Protocol):
    """A player with fixed rules, named `package.module:Class`.

    It has no state: the same observations give the same actions. So it can play any number of slots at once, in any
    order, and a resumed run continues exactly. Random moves are hashes of observations.

    Built in: `paceline.envs.pong_opponents:RandomOpponent` and `paceline.envs.pong_opponents:TrackerOpponent`.
    """

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        """The spaces of one agent. Raise a `UsageError` for spaces of another game."""
        ...

    def __call__(self, obs: dict[str, Tensor]) -> dict[str, Tensor] | Tensor:
        """Actions for B slots, on the device of the observations.

        Observations [B, ...] and actions have the names of `paceline.pool.spaces.leaves`. With a single action leaf the
        result may be its tensor alone. The call neither writes to `obs` nor waits for the device.
        """
        ...
