"""`DeterministicPolicy` and `ActionCritic`: D4PG's networks, for actions in boxes.

Legend: B rows, F features of an observation, A numbers of an action, P outputs of the critic. Networks use actions in
[-1, 1]; environments get them scaled to their bounds.

Policy and critic have one `ControlEncoder` together. Only the critic's loss trains it. Both networks take observations,
or features that the encoder has made of them, so that an update encodes each observation once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.accel.activations import Tanh
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.nets.config import ControlConfig, PolicyConfig
from paceline.nets.control_encoder import ControlEncoder, Seen
from paceline.nets.images import is_binary, is_image
from paceline.nets.layers import has_convolutions, make_activation
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.parts import IMAGE, REDUCED, TORSO, Parts, Unit, features_of
from paceline.nets.trunk import flat_size
from paceline.nets.value_heads import make_value_head
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf

_LAYERS = ("control.layer_norm", "control.activation", "policy.normalize_obs")
_VALUES = ("control.value.kind", "control.value.low", "control.value.high")
_CRITIC = {TORSO: "critic.torso", "last layer": "critic.last", "head": "critic.head"}
BOUNDS = ("low", "high")
"""Buffers of the policy with the bounds of the environment's actions."""
LAST_LAYER = 1e-3
"""Bound of the initial weights of last layers: the first actions and values are close to 0."""


class DeterministicPolicy(nn.Module):
    """One action for each observation.

    It owns the normalisers, if there are any. The learner uses them for the critic's observations, too.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self, spec: PoolSpec, config: ControlConfig, encoder: ControlEncoder, *, normalizes: bool = False
    ) -> None:
        super().__init__()
        action, box = only_box(spec)
        self.encoder = encoder
        self.num_actions = flat_size(action)
        self._shape = action.shape
        self.torso = Torso(encoder.out_features, config.actor_hidden, config.layer_norm, config.activation)
        self.last = _last_layer(self.torso.out_features, self.num_actions)
        self.name = action.name
        self.register_buffer("low", torch.tensor(box.low).flatten())
        self.register_buffer("high", torch.tensor(box.high).flatten())
        numbers = [leaf for leaf in spec.obs if isinstance(leaf.space, spaces.Box) and not is_image(leaf)]
        self.normalized = [leaf.name for leaf in numbers] if normalizes else []
        """Observations that are normalised: neither images nor choices. `normalizers` are in the same order."""
        if self.normalized:
            self.normalizers = nn.ModuleList(
                ObservationNormalizer(leaf.shape, is_board=is_binary(leaf.space)) for leaf in numbers
            )

    has_exact_last_layers = True
    """See `PPOPolicy`."""

    @property
    def has_convolutions(self) -> bool:
        """Whether PyTorch's own kernels compute any convolution."""
        return has_convolutions(self)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """The bounds stay those of the environment, whatever was saved."""
        super()._load_from_state_dict(
            state_dict | {f"{prefix}{name}": getattr(self, name) for name in BOUNDS}, prefix, *rest
        )

    def forward(self, seen: Seen) -> Tensor:
        """[B, A]: in [-1, 1]."""
        if not isinstance(seen, Tensor):
            seen = self.normalize(seen)
        return self.last(self.torso(self.encoder(seen))).tanh()

    def normalize(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Observations as the encoder takes them."""
        return obs | {name: normalizer(obs[name]) for name, normalizer in self._normalizers()}

    def absorb(self, obs: dict[str, Tensor], group: Group) -> None:
        """Add the observations of all ranks to the statistics. All ranks call it together."""
        for name, normalizer in self._normalizers():
            if not normalizer.is_frozen:
                normalizer.absorb(group.sum_(normalizer.sums(obs[name])))

    def _normalizers(self) -> list[tuple[str, ObservationNormalizer]]:
        found = (self.get_submodule(f"normalizers.{index}") for index in range(len(self.normalized)))
        return [(name, cast(ObservationNormalizer, one)) for name, one in zip(self.normalized, found, strict=True)]

    def env_actions(self, actions: Tensor) -> Tensor:
        """[B, ...]: actions as the environment takes them. Those that noise moved out of [-1, 1] are clipped first."""
        share = 0.5 * (actions.clamp(-1.0, 1.0) + 1.0)
        scaled = (1.0 - share) * self.low + share * self.high
        within = torch.minimum(torch.maximum(scaled, self.low), self.high)  # rounding may leave the bounds
        return within.view(-1, *self._shape)

    def initial_state(self, count: int) -> Tensor:
        """[count, 0]: there is no memory."""
        return torch.zeros(count, 0)

    def play(
        self, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Actions as the environment takes them, and the state unchanged."""
        if generator is not None:
            raise UsageError("a policy trained by d4pg is deterministic: there are no actions to sample")
        return {self.name: self.env_actions(self(obs))}, state


class ActionCritic(nn.Module):
    """The return distribution of observations and actions."""

    def __init__(self, spec: PoolSpec, config: ControlConfig, encoder: ControlEncoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = make_value_head(config.value)
        inputs = encoder.out_features + flat_size(only_box(spec)[0])
        self.torso = Torso(inputs, config.critic_hidden, config.layer_norm, config.activation)
        self.last = _last_layer(self.torso.out_features, self.head.num_outputs)

    def forward(self, seen: Seen, actions: Tensor) -> Tensor:
        """[B, P]: inputs of the value head; `actions` [B, A] are in [-1, 1]."""
        return self.last(self.torso(torch.cat([self.encoder(seen), actions], 1)))


class Torso(nn.Module):
    """Linear, layer normalisation, tanh; then linear layers with the activation.

    Layers compute in `precision`. The result is float32, for the last layer, which is not part of the torso.
    """

    precision = torch.float32

    def __init__(self, inputs: int, hidden: tuple[int, ...], layer_norm: bool, activation: str) -> None:
        super().__init__()
        first, *others = hidden
        layers: list[nn.Module] = [nn.Linear(inputs, first)]
        layers += [nn.LayerNorm(first), Tanh()] if layer_norm else [make_activation(activation)]
        for size in others:
            layers += [nn.Linear(first, size), make_activation(activation)]
            first = size
        self.layers = nn.Sequential(*layers)
        self.out_features = first

    def forward(self, x: Tensor) -> Tensor:
        if self.precision == torch.float32:
            return self.layers(x)
        # Casts are not cached: a recorded graph would keep a cast of old weights.
        with torch.autocast(x.device.type, self.precision, cache_enabled=False):
            return self.layers(x).float()


def _last_layer(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.uniform_(layer.weight, -LAST_LAYER, LAST_LAYER)
    nn.init.zeros_(layer.bias)
    return layer


def make_deterministic_policy(spec: PoolSpec, config: ControlConfig, encoders: PolicyConfig) -> DeterministicPolicy:
    """A policy without a critic."""
    encoder = ControlEncoder(spec.obs, encoders)
    return DeterministicPolicy(spec, config, encoder, normalizes=encoders.normalize_obs)


def make_networks(
    spec: PoolSpec, config: ControlConfig, encoders: PolicyConfig
) -> tuple[DeterministicPolicy, ActionCritic]:
    """A policy and its critic, with one encoder for both."""
    policy = make_deterministic_policy(spec, config, encoders)
    return policy, ActionCritic(spec, config, policy.encoder)


def control_parts(policy: DeterministicPolicy) -> Parts:
    """Where the parts are in a dictionary of both networks, `policy` and `critic`."""
    trunk, reduced = policy.encoder.trunk, _reduced(policy)
    normalizers = {name: f"policy.normalizers.{index}" for index, name in enumerate(policy.normalized)}
    features = features_of(trunk, tuple((leaf.name, flat_size(leaf)) for leaf in trunk.leaves), trunk.vectors)
    modules = {TORSO: "policy.torso"} | {f"normalizer of {n}": normalizers[n] for n in normalizers if n not in reduced}
    torso, last = Unit(modules, _LAYERS, columns={TORSO: features}), Unit({"last layer": "policy.last"})
    layers = {f"layers of {name}": path for name, path in reduced.items()}
    layers |= {f"normalizer of {name}": normalizers[name] for name in reduced if name in normalizers}
    first = {"reduced": Unit(layers, (*REDUCED, "policy.normalize_obs"))} if reduced else {}
    images = {
        f"{IMAGE}{name}": Unit({"encoder": f"policy.encoder.trunk.images.{index}"}, ("policy.encoder",))
        for index, name in enumerate(trunk.image_names)
    }
    return {
        "encoder": first | (images or {TORSO: torso}),
        "policy": ({TORSO: torso} if images else {}) | {"last layer": last},
        "critic": {"critic": Unit(_CRITIC, (*_LAYERS, *_VALUES), columns={TORSO: features})},
    }


def _reduced(policy: DeterministicPolicy) -> dict[str, str]:
    """The layers of reduced observations, by observation."""
    trunk = policy.encoder.trunk
    layers: Iterable[nn.Module] = trunk.vectors.embeddings if trunk.vectors is not None else ()
    return {
        leaf.name: f"policy.encoder.trunk.vectors.embeddings.{index}"
        for index, (leaf, own) in enumerate(zip(trunk.leaves, layers, strict=False))
        if not isinstance(own, nn.Identity)
    }


def only_box(spec: PoolSpec) -> tuple[Leaf, spaces.Box]:
    """The only leaf of the actions, and its space. Other actions are refused."""
    space = spec.actions[0].space
    if len(spec.actions) != 1 or not isinstance(space, spaces.Box) or not space.is_bounded():
        raise UsageError(
            f"d4pg needs one bounded Box of actions, got {spec.action_space}; for others: --system ddppo, ver or appo"
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise UsageError(
            f"d4pg needs a Box of floating-point actions, got {spec.action_space}; allowed: a Box of float32 or float64"
        )
    return spec.actions[0], space
