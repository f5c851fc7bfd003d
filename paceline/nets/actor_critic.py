"""`ActorCritic`: encoders, a recurrent core, an action head and a value, for the observations and actions of a pool.

Legend: B rows, M rows of a mini-batch, K sequences, D numbers of recurrent state, F features.

    observations -> normaliser -> encoders (one per image, one for all vectors), joined -> core -> head, value
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from paceline.distributed.runtime import Group
from paceline.nets.config import PolicyConfig
from paceline.nets.cores import Core
from paceline.nets.encoders import (
    ConvEncoder,
    ImpalaResNet,
    NatureCNN,
    PatchEncoder,
    SampleFactoryConv,
    VectorEncoder,
    as_float,
)
from paceline.nets.heads import ActionHead
from paceline.nets.last_layer import LastLayer
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.resnet import ResNetEncoder
from paceline.nets.ver_resnet import VERResNetEncoder
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import Leaf

MASK = "action_mask"
"""An observation of this name is not seen by the encoders: it says which discrete actions are allowed."""

ENCODERS: dict[str, Callable[..., Any]] = {
    "patches": PatchEncoder,
    "nature": NatureCNN,
    "sample_factory": SampleFactoryConv,
    "impala": ImpalaResNet,
    **{name: partial(ResNetEncoder, name=name) for name in ("resnet18", "resnet50", "se_resnext50", "se_resnext101")},
    "ver_resnet18": VERResNetEncoder,
}


class Recall(NamedTuple):
    """How the rows of a mini-batch form sequences: packed, or as whole columns of a rollout."""

    state: Tensor
    """[K, D]: recurrent states before the sequences' first rows."""
    batch_sizes: Tensor | None = None
    """Of packed sequences, on the host."""
    episode_start: Tensor | None = None
    """[T, K] bool: rows are T turns of K columns."""


class Evaluation(NamedTuple):
    """What a policy says of a mini-batch, under its present weights."""

    log_prob: Tensor
    """[M]: of the actions taken."""
    entropy: Tensor
    """[M]."""
    value: Tensor
    """[M]."""
    features: Tensor
    """[M, F]: observations as the trunk encodes them, in the precision of the layers."""
    belief: Tensor
    """[M, ...]: what the core made of them and of what it remembers; the features themselves where it has no memory."""


class ActorCritic(nn.Module):
    """A policy and its value function. Encoders and core compute in `precision`, the last layers in float32."""

    version: Tensor
    """[] int64: how many updates these weights have had. A buffer: no copy of the weights can go without it."""

    def __init__(self, spec: PoolSpec, config: PolicyConfig) -> None:
        super().__init__()
        inputs = tuple(leaf for leaf in spec.obs if leaf.name != MASK)
        self.is_masked = len(inputs) < len(spec.obs)
        """Whether observations say which actions are allowed."""
        self._names = [leaf.name for leaf in inputs]
        self._channels_last = [leaf.name for leaf in inputs if is_channels_last(leaf)]
        self.normalizers = nn.ModuleList(
            ObservationNormalizer(seen_shape(leaf)) if is_normalized(leaf) else nn.Identity() for leaf in inputs
        )
        self.normalizes = config.normalize_obs
        """Whether numbers are normalised before they are encoded."""
        self.trunk = Trunk(inputs, config)
        self.core = Core(self.trunk.out_features, config.core)
        self._actions = spec.actions
        self.head = ActionHead(spec.actions, self.core.out_features, config.head)
        self.critic_trunk = Trunk(inputs, config) if config.critic == "separate" else None
        self.critic = LastLayer(self.core.out_features, 1)
        nn.init.orthogonal_(self.critic.weight, 1.0)
        nn.init.zeros_(self.critic.bias)
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))
        self.precision = torch.float32

    def compile_encoders(self) -> None:
        """Compile what sees the observations, for acting and learning alike; names and weights stay."""
        self.trunk.compile()
        if self.critic_trunk is not None:
            self.critic_trunk.compile()

    @property
    def has_convolutions(self) -> bool:
        """Whether any is computed by PyTorch's own kernels."""
        encoders = [module for module in self.modules() if isinstance(module, ConvEncoder) and module.as_matrices]
        own = {conv for encoder in encoders for conv in encoder.modules()}
        return any(isinstance(module, nn.Conv2d) and module not in own for module in self.modules())

    @property
    def is_recurrent(self) -> bool:
        return self.core.state_size > 0

    def initial_state(self, count: int) -> Tensor:
        """[count, D]: the state before the first step of an episode."""
        return torch.zeros(count, self.core.state_size)

    def act(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters of the action distribution [B, P], value [B] and the state after this step [B, D]."""
        with self._autocast(state):
            seen = self.see(obs)
            features, new_state = self.core.step(self.trunk(seen), state)
            return *self._last_layers(obs, seen, features), new_state

    def play(
        self, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The likeliest actions, or with a generator sampled ones, as the environment takes them; and the state after."""
        params, _, after = self.act(obs, state)
        actions = self.head.mode(params) if generator is None else self.head.sample(params, generator)
        return self.head.env_actions(actions), after

    def value(self, obs: dict[str, Tensor], state: Tensor) -> Tensor:
        """[B]: V, without moving any state on."""
        with self._autocast(state):
            seen = self.see(obs)
            if self.critic_trunk is not None:
                return self._value(seen, None)
            return self._value(seen, self.core.step(self.trunk(seen), state)[0])

    def evaluate(self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None) -> Evaluation:
        """Evaluate actions taken. A recurrent policy needs to know, by `recall`, what the rows follow."""
        params, value, features, belief = self._think(obs, recall)
        return Evaluation(self.head.log_prob(params, actions), self.head.entropy(params), value, features, belief)

    def appraise(
        self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None
    ) -> tuple[Tensor, Tensor]:
        """Of `evaluate` the log-probabilities and the values: no head draws anything for these."""
        params, value, _, _ = self._think(obs, recall)
        return self.head.log_prob(params, actions), value

    def _think(self, obs: dict[str, Tensor], recall: Recall | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The head's parameters, the values, and what they were made of: features, and with memory, beliefs."""
        with self._autocast(next(iter(obs.values()))):
            seen = self.see(obs)
            features = self.trunk(seen)
            belief = self._remember(features, recall) if recall is not None else features
            return *self._last_layers(obs, seen, belief), features, belief

    @property
    def num_action_features(self) -> int:
        return sum(flat_size(leaf) for leaf in self._actions)

    def action_features(self, actions: dict[str, Tensor]) -> Tensor:
        """[M, num_action_features]: actions as the environment gets them; choices one-hot."""
        taken = self.head.env_actions(actions)
        return torch.cat([flatten(taken[leaf.name], leaf) for leaf in self._actions], 1)

    def _remember(self, features: Tensor, recall: Recall) -> Tensor:
        if recall.episode_start is not None:
            columns = features.view(*recall.episode_start.shape, -1)
            return self.core.scan(columns, recall.episode_start, recall.state).flatten(0, 1)
        assert recall.batch_sizes is not None
        return self.core.sequence(features, recall.batch_sizes, recall.state)

    def _autocast(self, example: Tensor) -> contextlib.AbstractContextManager:
        if self.precision == torch.float32:
            return contextlib.nullcontext()
        # Casts are not cached: within a recorded graph a cached one would be of weights long gone.
        return torch.autocast(example.device.type, self.precision, cache_enabled=False)

    def absorb(self, obs: dict[str, Tensor], rows: Tensor, group: Group) -> None:
        """Update the normalisers with `rows` of observations, of all ranks together."""
        obs = self._channels_first(obs)
        for name, normalizer in zip(self._names, self.normalizers, strict=True):
            if isinstance(normalizer, ObservationNormalizer):
                normalizer.absorb(group.sum_(normalizer.sums(obs[name][rows])))

    def _channels_first(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        if not self._channels_last:
            return obs
        return obs | {name: obs[name].permute(0, 3, 1, 2) for name in self._channels_last}

    def see(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Observations as the trunks take them."""
        obs = self._channels_first(obs)
        if not self.normalizes:
            return obs
        return {name: normalizer(obs[name]) for name, normalizer in zip(self._names, self.normalizers, strict=True)}

    def _mask(self, obs: dict[str, Tensor]) -> dict[str, Tensor] | None:
        return {self._actions[0].name: obs[MASK].bool().flatten(1)} if MASK in obs else None

    def _last_layers(self, obs: dict[str, Tensor], seen: dict[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
        """The head's parameters and the values."""
        features = features.to(self.critic.weight.dtype)  # once for both layers: their gradients meet in float32
        return self.head(features, self._mask(obs)), self._value(seen, features)

    def _value(self, seen: dict[str, Tensor], features: Tensor | None) -> Tensor:
        if self.critic_trunk is not None:
            features = self.critic_trunk(seen)
        return self.critic(features).squeeze(-1)


class Trunk(nn.Module):
    """All observation leaves to one feature vector: every image by its encoder, everything else by one perceptron."""

    def __init__(self, leaves: tuple[Leaf, ...], config: PolicyConfig) -> None:
        super().__init__()
        images = [leaf for leaf in leaves if is_image(leaf)]
        self.leaves = [leaf for leaf in leaves if not is_image(leaf)]
        """All that are not images."""
        self._image_names = [leaf.name for leaf in images]
        encoders = [ENCODERS[config.encoder](seen_shape(leaf), hidden=config.encoder_size) for leaf in images]
        self.images = nn.ModuleList(encoders)
        self.vectors: VectorEncoder | None = None
        if self.leaves:
            width = sum(flat_size(leaf) for leaf in self.leaves)
            self.vectors = VectorEncoder((width,), hidden_sizes=config.hidden, activation=config.activation)
        self.num_image_features = sum(encoder.out_features for encoder in encoders)
        """The first ones; those of everything else follow."""
        self.out_features = self.num_image_features + (self.vectors.out_features if self.vectors is not None else 0)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = [encoder(obs[name]) for name, encoder in zip(self._image_names, self.images, strict=True)]
        if self.vectors is not None:
            parts.append(self.vectors(join(obs, self.leaves)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    @property
    def is_compiled(self) -> bool:
        return self._compiled_call_impl is not None


def is_image(leaf: Leaf) -> bool:
    """Three dimensions are an image."""
    return len(leaf.shape) == 3


def is_channels_last(leaf: Leaf) -> bool:
    """An image as most renderers give it, [H, W, C]: told by its one, three or four channels."""
    return is_image(leaf) and leaf.shape[2] in (1, 3, 4) and leaf.shape[0] not in (1, 3, 4)


def seen_shape(leaf: Leaf) -> tuple[int, ...]:
    """A leaf's shape as encoders see it: images have their channels first."""
    return (leaf.shape[2], *leaf.shape[:2]) if is_channels_last(leaf) else leaf.shape


def is_normalized(leaf: Leaf) -> bool:
    """Numbers are normalised; one-hot choices are not."""
    return isinstance(leaf.space, spaces.Box)


def flat_size(leaf: Leaf) -> int:
    if isinstance(leaf.space, spaces.Discrete):
        return int(leaf.space.n)
    if isinstance(leaf.space, spaces.MultiDiscrete):
        return int(leaf.space.nvec.sum())
    return int(math.prod(leaf.shape))


def join(obs: dict[str, Tensor], leaves: Sequence[Leaf]) -> Tensor:
    """[B, F]: all these leaves in one row."""
    flat = [flatten(obs[leaf.name], leaf) for leaf in leaves]
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


def flatten(values: Tensor, leaf: Leaf) -> Tensor:
    """[B, flat_size]: numbers as they are, discrete values one-hot."""
    if isinstance(leaf.space, spaces.Discrete):
        return functional.one_hot(values, int(leaf.space.n)).float()
    if isinstance(leaf.space, spaces.MultiDiscrete):
        columns = values.flatten(1).unbind(1)
        return torch.cat(
            [functional.one_hot(c, int(n)).float() for c, n in zip(columns, leaf.space.nvec.flat, strict=True)], 1
        )
    return as_float(values).flatten(1)


@torch.no_grad()
def few_values(policy: ActorCritic, obs: dict[str, Tensor], state: Tensor) -> Tensor:
    """[C]: V of any number of observations, without a gradient."""
    if state.device.type != "cuda":
        return policy.value(obs, state)
    # Padded to powers of 2: a compiled network is compiled again for every new size.
    count = len(state)
    size = 1 << max(3, (count - 1).bit_length())
    padded = {name: _padded(values, size) for name, values in obs.items()}
    return policy.value(padded, _padded(state, size))[:count]


def _padded(values: Tensor, size: int) -> Tensor:
    """`values` followed by zeros."""
    return torch.cat([values, values.new_zeros((size - len(values), *values.shape[1:]))])
