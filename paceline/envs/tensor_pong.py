"""Pong for two in torch: thousands of matches in one step on any device.

The court spans -1 to 1 in both directions. The left paddle moves along x = -1, the right one along x = 1, each by
`PADDLE_SPEED` per step. The ball bounces off the walls y = -1 and y = 1. Its return from a paddle is flat in the middle
and steep at the edges. Every hit makes it faster, up to `MAX_SPEED`. A steep ball then climbs faster than a paddle, so
a player must foresee where it arrives.

A ball that passes a paddle is a point for the other player: reward 1 for one and -1 for the other. The next ball starts
in the middle of the court, to a random side. The match ends at the last point, or is truncated after
`max_episode_steps`.

Both players see the match from their own side (`VIEW`), so one policy can play both.

`step` neither waits for the device nor reads values, and it writes all state in place, so a CUDA graph can capture it.
Random numbers are hashes of seed, stream and number of the ball, so a match is the same in a batch of any size.

Legend: N matches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from paceline.errors import UsageError
from paceline.pool.tensor import TensorStep
from paceline.sims.randomness import combine, stream_keys

STAY, UP, DOWN = range(3)
HALF_PADDLE = 0.2
PADDLE_SPEED = 0.05
START_SPEED, MAX_SPEED, SPEEDUP = 0.06, 0.18, 1.2
"""Speeds of the ball across the court, and the factor of a hit."""
STEEPEST = 1.2
"""Slope of a ball that the edge of a paddle returns."""
START_Y, START_SLOPE = 0.5, 0.5
"""Limits of where a ball starts, and of its slope."""
# Rows of the state.
LEFT, RIGHT, X, Y, VX, VY, LEFT_POINTS, RIGHT_POINTS, STEPS = range(9)
VIEW = ("own_paddle", "other_paddle", "ball_x", "ball_y", "ball_vx", "ball_vy", "own_points", "other_points")
"""The entries of an observation. The own paddle is at ball_x = -1. Velocities are shares of the highest ones, points
are shares of the points that win."""
OBSERVATION_SPACE = spaces.Box(-1.0, 1.0, (len(VIEW),), np.float32)
ACTION_SPACE = spaces.Discrete(3)


class TensorPong:
    """A `TensorSimulator` of two agents. Its match i is stream `first_stream` + i of the seed. The first player with
    `points` points wins."""

    frameskip = 1
    recordable = True
    agents_per_env = 2
    agents = ("left", "right")
    measure_names = ("win",)
    """1 for the player with more points at the end of the match, 0 for the other, 0.5 for both if they are equal."""

    def __init__(
        self,
        num_envs: int,
        device: str | torch.device = "cpu",
        points: int = 3,
        max_episode_steps: int = 1000,
        *,
        first_stream: int = 0,
    ) -> None:
        for name, value in {"points": points, "max_episode_steps": max_episode_steps}.items():
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}; allowed: a whole number above 0")
        self.num_envs, self.device = num_envs, torch.device(device)
        self.observation_space, self.action_space = OBSERVATION_SPACE, ACTION_SPACE
        self._points, self._max_episode_steps = points, max_episode_steps
        self.truncation_gap = max_episode_steps
        self.last_measures: dict[str, Tensor] = {}
        self.last_state = torch.zeros(9, num_envs, device=self.device)
        """[9, N]: the state after the last step, before any reset."""
        self._state = torch.zeros(9, num_envs, device=self.device)
        self._streams = torch.arange(first_stream, first_stream + num_envs, device=self.device)
        self._keys, self._balls = torch.zeros_like(self._streams), torch.zeros_like(self._streams)
        self._shifts = torch.tensor([[0], [15], [16]], device=self.device)
        self._start = torch.tensor([[START_Y], [START_SLOPE * START_SPEED], [START_SPEED]], device=self.device)
        self._moves = torch.tensor([0.0, PADDLE_SPEED, -PADDLE_SPEED], device=self.device)
        left = [LEFT, RIGHT, X, Y, VX, VY, LEFT_POINTS, RIGHT_POINTS]
        right = [RIGHT, LEFT, X, Y, VX, VY, RIGHT_POINTS, LEFT_POINTS]
        scale = torch.tensor([1, 1, 1, 1, 1 / MAX_SPEED, 1 / (STEEPEST * MAX_SPEED), 1 / points, 1 / points])
        mirror = torch.tensor([1.0, 1, -1, 1, -1, 1, 1, 1])
        self._rows = torch.tensor(left + right, device=self.device)
        self._scale = torch.cat((scale, scale * mirror))[:, None].to(self.device)

    def reset(self, seed: int) -> dict[str, Tensor]:
        self._keys.copy_(stream_keys(seed, self._streams))
        self._balls.zero_()
        self._state.zero_()
        self._state[X : VY + 1] = self._next_balls()
        self._balls += 1
        self.last_state = self._state.clone()
        return {"obs": self._observe(self._state)}

    @torch.no_grad()
    def step(self, actions: Tensor) -> TensorStep:
        paddles = self._state[: RIGHT + 1] + self._moves[actions].view(-1, 2).T
        paddles = paddles.clamp_(HALF_PADDLE - 1, 1 - HALF_PADDLE)
        ball, winner = fly(self._state[X : VY + 1], paddles)
        signs = torch.stack((winner, -winner))
        points = self._state[LEFT_POINTS : RIGHT_POINTS + 1] + signs.clamp(min=0)
        steps = self._state[STEPS] + 1
        terminated = points.amax(0) >= self._points
        truncated = (steps >= self._max_episode_steps) & ~terminated
        ended = terminated | truncated
        final = torch.cat((paddles, ball, points, steps[None]))
        # Draw balls for all matches, because the host does not know which need one.
        served = ended | (winner != 0)
        after = final.masked_fill(ended, 0)
        after[X : VY + 1] = torch.where(served, self._next_balls(), ball)
        self._balls += served
        self._state.copy_(after)
        self.last_state = final
        self.last_measures = {"win": _interleave((points - points.flip(0)).sign() / 2 + 0.5)}
        views = self._observe(torch.cat((final, after), 1))
        last, first = views.split(2 * self.num_envs)
        both = torch.stack((terminated, truncated)).repeat_interleave(2, 1)
        return TensorStep({"obs": first}, _interleave(signs), both[0], both[1], {"obs": last})

    def state_dict(self) -> dict[str, Any]:
        return {"state": self._state.clone(), "keys": self._keys.clone(), "balls": self._balls.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._state.copy_(state["state"])
        self._keys.copy_(state["keys"])
        self._balls.copy_(state["balls"])
        self.last_state = self._state.clone()

    def _next_balls(self) -> Tensor:
        """[4, N]: the next ball of every match."""
        # Three numbers of 15 bits between -1 and 1. Only the sign of the last one counts.
        bits = (combine(self._keys, self._balls) >> self._shifts) & 0x7FFF
        y, vy, side = (bits.float() / 2**14 - 1) * self._start
        return torch.stack((torch.zeros_like(y), y, self._start[2].copysign(side), vy))

    def _observe(self, state: Tensor) -> Tensor:
        """[2 M, 8]: the views of the players of M matches in `state` [9, M]."""
        return (state[self._rows] * self._scale).T.reshape(-1, len(VIEW))


def fly(ball: Tensor, paddles: Tensor) -> tuple[Tensor, Tensor]:
    """The ball [4, N] one step later, and who wins a point [N]: 1 is left, -1 is right, 0 is nobody.

    A ball that reaches the line of a paddle stays there for the rest of the step, whether it is hit or not.
    """
    x, y, vx, vy = ball
    direction = vx.sign()
    arrives = (x + vx).abs() >= 1
    x = torch.where(arrives, direction, x + vx)
    y = y + vy * torch.where(arrives, (direction - ball[0]) / vx, 1.0)
    beyond = y.abs() > 1
    y = torch.where(beyond, 2 * y.sign() - y, y)
    vy = torch.where(beyond, -vy, vy)
    offset = (y - torch.where(vx > 0, paddles[1], paddles[0])) / HALF_PADDLE
    hit = arrives & (offset.abs() <= 1)
    returned = (vx * -SPEEDUP).clamp(-MAX_SPEED, MAX_SPEED)
    vx = torch.where(hit, returned, vx)
    vy = torch.where(hit, returned.abs() * offset * STEEPEST, vy)
    return torch.stack((x, y, vx, vy)), torch.where(arrives & ~hit, direction, 0.0)


def _interleave(pairs: Tensor) -> Tensor:
    """[2 N] by slots, from [2, N]."""
    return pairs.T.reshape(-1)
