"""Parts of networks as a user writes them: with nothing but what the registry asks for."""

from __future__ import annotations

import math

import torch
from torch import nn

MADE: list[str] = []
"""Names of the classes that were made: what ran."""


class Encoder(nn.Module):
    def __init__(self, leaf_shape, *, hidden):
        super().__init__()
        MADE.append("Encoder")
        self.linear, self.out_features = nn.Linear(math.prod(leaf_shape), hidden), hidden

    def forward(self, images):
        return self.linear(images.flatten(1).float() / 255)


class PaletteEncoder(Encoder):
    """Every value of a pixel has an embedding."""

    def __init__(self, leaf_shape, *, hidden):
        super().__init__(leaf_shape, hidden=hidden)
        self.embeddings = nn.Embedding(256, 1)

    def forward(self, images):
        return self.linear(self.embeddings(images.long()).flatten(1))


class Core(nn.Module):
    """A leaky sum of the features."""

    def __init__(self, in_features, config):
        super().__init__()
        self.mix, self.out_features, self.state_size = (
            nn.Linear(in_features, config.hidden),
            config.hidden,
            config.hidden,
        )

    def step(self, features, state):
        after = 0.9 * state + self.mix(features)
        return after, after


class Head(nn.Module):
    """One choice."""

    def __init__(self, leaves, in_features, config):
        super().__init__()
        (self.leaf,) = leaves
        self.linear, self.max_entropy = nn.Linear(in_features, int(self.leaf.space.n)), math.log(int(self.leaf.space.n))

    def forward(self, features, mask=None):
        return self.linear(features).log_softmax(1)

    def sample(self, params, generator=None):
        return {self.leaf.name: torch.multinomial(params.exp(), 1, generator=generator)[:, 0]}

    def mode(self, params):
        return {self.leaf.name: params.argmax(1)}

    def log_prob(self, params, actions):
        return params.gather(1, actions[self.leaf.name][:, None])[:, 0]

    def entropy(self, params):
        return -(params.exp() * params).sum(1)

    def env_actions(self, actions):
        return dict(actions)


class Value(nn.Module):
    num_outputs = 1

    def __init__(self, config):
        super().__init__()

    def mean(self, outputs):
        return outputs[:, 0]

    def loss(self, outputs, reward, discount, target):
        return (reward + discount * target[:, 0] - outputs[:, 0]).abs()

    def surprise(self, outputs, reward, discount, target, loss):
        return loss


class FlatEncoder(Encoder):
    def forward(self, images):
        return super().forward(images).flatten()


class OutputCore(Core):
    def step(self, features, state):
        return self.mix(features)


class EagerCore(Core):
    def step(self, features):
        return self.mix(features)


class WideHead(Head):
    def log_prob(self, params, actions):
        return super().log_prob(params, actions)[:, None]


class NamelessHead(Head):
    def sample(self, params, generator=None):
        return {"move": params.argmax(1)}


class Unfinished(nn.Module):
    """Takes any arguments, and has nothing."""

    def __init__(self, *_, **__):
        super().__init__()


class Needy(nn.Module):
    def __init__(self, more):
        super().__init__()


def not_a_module(*_, **__):
    return 3
