"""Scripted opponents for `tensor:pong`. They follow the protocol `paceline.population.scripted.ScriptedOpponent`."""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor

from paceline.envs.tensor_pong import ACTION_SPACE, DOWN, OBSERVATION_SPACE, PADDLE_SPEED, STAY, UP, VIEW
from paceline.errors import UsageError
from paceline.sims.randomness import MASK, below, mix

OWN_PADDLE, BALL_Y = VIEW.index("own_paddle"), VIEW.index("ball_y")


class RandomOpponent:
    """Moves at random. An action is a hash of the observation, so a match is the same in every run."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        _require_pong("random", observation_space, action_space)

    def __call__(self, obs: dict[str, Tensor]) -> Tensor:
        bits = obs["obs"].contiguous().view(torch.int32).long() & MASK
        total = torch.zeros_like(bits[:, 0])
        for column in bits.unbind(1):
            total = mix(total ^ column)
        return below(total, int(ACTION_SPACE.n))


class TrackerOpponent:
    """Follows the ball."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        _require_pong("tracker", observation_space, action_space)

    def __call__(self, obs: dict[str, Tensor]) -> Tensor:
        gap = obs["obs"][:, BALL_Y] - obs["obs"][:, OWN_PADDLE]
        towards = torch.where(gap > 0, UP, DOWN)
        return torch.where(gap.abs() < PADDLE_SPEED / 2, STAY, towards)


def _require_pong(name: str, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    if (observation_space, action_space) != (OBSERVATION_SPACE, ACTION_SPACE):
        raise UsageError(
            f"the scripted opponent {name!r} plays tensor:pong only, with observations {OBSERVATION_SPACE} and actions "
            f"{ACTION_SPACE}; this environment has {observation_space} and {action_space}"
        )
