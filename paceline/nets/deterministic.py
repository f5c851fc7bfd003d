"""`DeterministicPolicy` and `ActionCritic`: D4PG's networks, for observations of numbers and actions in boxes.

B rows, A numbers of an action. Networks speak of actions in [-1, 1]; environments get them scaled to their bounds.
"""

from __future__ import annotations

import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.accel.activations import Tanh
from paceline.errors import UsageError
from paceline.nets.actor_critic import flat_size, is_image, join
from paceline.nets.config import Activation, ControlConfig
from paceline.nets.encoders import ACTIVATIONS
from paceline.nets.value_heads import make_value_head
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf

LAST_LAYER = 1e-3
"""Weights of last layers are drawn within this: a new policy does next to nothing, and a new critic has no opinion."""


class DeterministicPolicy(nn.Module):
    """The action of every observation."""

    low: Tensor
    high: Tensor
    has_convolutions = False

    def __init__(self, spec: PoolSpec, config: ControlConfig) -> None:
        super().__init__()
        self.leaves = _vectors(spec)
        action, box = _box(spec)
        self.num_actions = flat_size(action)
        self._shape = action.shape
        self.torso = Torso(sum(map(flat_size, self.leaves)), config.actor_hidden, config.layer_norm, config.activation)
        self.last = _last_layer(self.torso.out_features, self.num_actions)
        self.name = action.name
        """Of the one leaf of the actions."""
        self.register_buffer("low", torch.as_tensor(box.low).flatten())
        self.register_buffer("high", torch.as_tensor(box.high).flatten())

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """[B, A]: in [-1, 1]."""
        return self.last(self.torso(join(obs, self.leaves))).tanh()

    def env_actions(self, actions: Tensor) -> Tensor:
        """[B, ...]: actions as the environment takes them; what noise has brought out of [-1, 1] is brought back."""
        share = 0.5 * (actions.clamp(-1.0, 1.0) + 1.0)
        return (self.low + share * (self.high - self.low)).view(-1, *self._shape)

    def initial_state(self, count: int) -> Tensor:
        """[count, 0]: there is no memory."""
        return torch.zeros(count, 0)

    def play(
        self, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Actions as the environment takes them, and the state as it was."""
        if generator is not None:
            raise UsageError("a policy that d4pg trained has nothing to sample: its actions are what it takes for best")
        return {self.name: self.env_actions(self(obs))}, state


class ActionCritic(nn.Module):
    """What returns are to be expected of observations and actions."""

    def __init__(self, spec: PoolSpec, config: ControlConfig) -> None:
        super().__init__()
        self.leaves = _vectors(spec)
        self.head = make_value_head(config.value)
        inputs = sum(map(flat_size, self.leaves)) + flat_size(_box(spec)[0])
        self.torso = Torso(inputs, config.critic_hidden, config.layer_norm, config.activation)
        self.last = _last_layer(self.torso.out_features, self.head.num_outputs)

    def forward(self, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        """[B, P]: outputs that the head understands; `actions` [B, A] are in [-1, 1]."""
        return self.last(self.torso(torch.cat([join(obs, self.leaves), actions], 1)))


class Torso(nn.Module):
    """Linear, layer normalisation, tanh; then linear layers with the activation. Results are float32, whatever `precision` the
    layers compute in: it is the last layer, which is not here, that says what a thing is worth."""

    precision = torch.float32

    def __init__(self, inputs: int, hidden: tuple[int, ...], layer_norm: bool, activation: Activation) -> None:
        super().__init__()
        first, *others = hidden
        layers: list[nn.Module] = [nn.Linear(inputs, first)]
        layers += [nn.LayerNorm(first), Tanh()] if layer_norm else [ACTIVATIONS[activation]()]
        for size in others:
            layers += [nn.Linear(first, size), ACTIVATIONS[activation]()]
            first = size
        self.layers = nn.Sequential(*layers)
        self.out_features = first

    def forward(self, x: Tensor) -> Tensor:
        if self.precision == torch.float32:
            return self.layers(x)
        # Casts are not cached: within a recorded graph a cached one would be of weights long gone.
        with torch.autocast(x.device.type, self.precision, cache_enabled=False):
            return self.layers(x).float()


def _last_layer(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.uniform_(layer.weight, -LAST_LAYER, LAST_LAYER)
    nn.init.zeros_(layer.bias)
    return layer


def _vectors(spec: PoolSpec) -> tuple[Leaf, ...]:
    images = [leaf.name for leaf in spec.obs if is_image(leaf)]
    if images:
        raise UsageError(f"d4pg learns from numbers, but {', '.join(images)} is an image; allowed: ddppo, ver, appo")
    return spec.obs


def _box(spec: PoolSpec) -> tuple[Leaf, spaces.Box]:
    """The one leaf of the actions, and its space."""
    space = spec.actions[0].space
    if len(spec.actions) != 1 or not isinstance(space, spaces.Box) or not space.is_bounded():
        raise UsageError(
            f"d4pg needs one bounded Box of actions, got {spec.action_space}; for others: --system ddppo, ver or appo"
        )
    return spec.actions[0], space
