"""Whole policies as a user writes them, right and wrong."""

from __future__ import annotations

import torch
from torch import nn

from paceline.nets.heads import make_head


class Plain(nn.Module):
    """Without memory. It reads a Box called obs, and ignores other observations."""

    state_size = 0

    def __init__(self, spec, config):
        super().__init__()
        size = next(leaf.shape[0] for leaf in spec.obs if leaf.name == "obs")
        self.body = nn.Sequential(nn.Linear(size, 16), nn.Tanh())
        self.head = make_head(spec.actions, 16, config.head)
        self.critic = nn.Linear(16, 1)

    def forward(self, obs, state):
        features = self.body(obs["obs"])
        return self.head(features), self.critic(features).squeeze(-1), state


class Leaky(Plain):
    """A leaky sum of features is its memory."""

    state_size = 16

    def forward(self, obs, state):
        after = 0.5 * state + self.body(obs["obs"])
        return self.head(after), self.critic(after).squeeze(-1), after


class NoHead(nn.Module):
    state_size = 0

    def __init__(self, spec, config):
        super().__init__()

    def forward(self, obs, state):
        return state


class WideValues(Plain):
    def forward(self, obs, state):
        params, value, state = super().forward(obs, state)
        return params, value[:, None], state


class TwoResults(Plain):
    def forward(self, obs, state):
        return super().forward(obs, state)[:2]


class ForgetsState(Leaky):
    def forward(self, obs, state):
        params, value, _ = super().forward(obs, state)
        return params, value, torch.zeros(len(value), 3)


class WrongForward(Plain):
    def forward(self, obs):
        return obs


class HalfHead(Plain):
    def __init__(self, spec, config):
        super().__init__(spec, config)
        self.head = nn.Linear(16, 2)


class BadSize(Plain):
    state_size = "16"
