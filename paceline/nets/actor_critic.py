"""`ActorCritic`: the policy and value function of the PPO systems.

Legend: T steps, B rows, M rows of a mini-batch, K sequences, D numbers of recurrent state, F features, P parameters.

    observations -> normaliser -> encoders (one per image, one for the rest), joined -> core -> head and critic
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import torch
from gymnasium import spaces
from torch import Tensor, nn

from paceline.distributed.runtime import Group
from paceline.nets.config import PolicyConfig
from paceline.nets.cores import Core, make_core, scan, sequence
from paceline.nets.heads import make_head
from paceline.nets.layers import LastLayer, has_convolutions
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.planner import PlannedCore
from paceline.nets.trunk import Trunk, channels_first, flat_size, flatten, is_channels_last, seen_shape
from paceline.pool.protocol import PoolSpec

MASK = "action_mask"
"""An observation of this name says which discrete actions are allowed. Encoders do not see it."""


class Recall(NamedTuple):
    """How the rows of a mini-batch form sequences: packed, or as whole columns of a rollout."""

    state: Tensor
    """[K, D]: recurrent states before the sequences' first rows."""
    batch_sizes: Tensor | None = None
    """Of packed sequences, on the host."""
    episode_start: Tensor | None = None
    """[T, K] bool: the rows are T steps of K columns."""


class Evaluation(NamedTuple):
    """A mini-batch under the policy's current weights."""

    log_prob: Tensor
    """[M]: of the actions taken."""
    entropy: Tensor
    """[M]."""
    value: Tensor
    """[M]."""
    features: Tensor
    """[M, F]: the trunk's output, in the precision of the layers."""
    belief: Tensor
    """[M, ...]: the core's output; without memory, the features."""


class ActorCritic(nn.Module):
    """A policy and its value function. Encoders and core compute in `precision`, the last layers in float32."""

    version: Tensor
    """[] int64: how many updates these weights have had. A buffer, so that every copy of the weights has it."""

    def __init__(self, spec: PoolSpec, config: PolicyConfig) -> None:
        super().__init__()
        inputs = tuple(leaf for leaf in spec.obs if leaf.name != MASK)
        self.is_masked = len(inputs) < len(spec.obs)
        """Whether observations say which actions are allowed."""
        self.names = [leaf.name for leaf in inputs]
        """The observations that are encoded. `normalizers` are in the same order."""
        self._channels_last = [leaf.name for leaf in inputs if is_channels_last(leaf)]
        # Numbers are normalised, one-hot choices are not.
        self.normalizers = nn.ModuleList(
            ObservationNormalizer(seen_shape(leaf)) if isinstance(leaf.space, spaces.Box) else nn.Identity()
            for leaf in inputs
        )
        self.normalizes = config.normalize_obs
        """Whether observations are normalised before they are encoded."""
        self.trunk = Trunk(inputs, config)
        self.core: Core | PlannedCore
        if config.planner.kind == "none":
            self.core = make_core(self.trunk.out_features, config.core)
            acting = judging = self.core.out_features
        else:
            self.core = PlannedCore(self.trunk, config)
            acting, judging = self.core.controller.out_features, self.core.planner.out_features
        self._actions = spec.actions
        self.head = make_head(spec.actions, acting, config.head)
        self.critic_trunk = Trunk(inputs, config) if config.critic == "separate" else None
        self.critic = LastLayer(judging, 1)
        nn.init.orthogonal_(self.critic.weight, 1.0)
        nn.init.zeros_(self.critic.bias)
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))
        self.precision = torch.float32

    def compile_encoders(self) -> None:
        """Compile the encoders, for acting and learning; names and weights stay."""
        self.trunk.compile()
        if self.critic_trunk is not None:
            self.critic_trunk.compile()

    @property
    def has_convolutions(self) -> bool:
        """Whether PyTorch's own kernels compute any convolution."""
        return has_convolutions(self)

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
            features, new_state = self.core.step(self._features(seen), state)
            return *self._last_layers(obs, seen, features), new_state

    def play(
        self, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The most likely actions, or sampled ones with a `generator`, as the environment takes them; the new state."""
        params, _, after = self.act(obs, state)
        actions = self.head.mode(params) if generator is None else self.head.sample(params, generator)
        return self.head.env_actions(actions), after

    def value(self, obs: dict[str, Tensor], state: Tensor) -> Tensor:
        """[B]: V. No state advances."""
        with self._autocast(state):
            seen = self.see(obs)
            if self.critic_trunk is not None:
                return self._value(seen, None)
            return self._value(seen, self.core.step(self._features(seen), state)[0])

    def evaluate(self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None) -> Evaluation:
        """Evaluate actions taken. A recurrent policy needs `recall`."""
        params, value, features, belief = self._forward(obs, recall)
        return Evaluation(self.head.log_prob(params, actions), self.head.entropy(params), value, features, belief)

    def appraise(
        self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None
    ) -> tuple[Tensor, Tensor]:
        """The log-probabilities and values of `evaluate`. Draws no random numbers, which an entropy may."""
        params, value, _, _ = self._forward(obs, recall)
        return self.head.log_prob(params, actions), value

    def _forward(self, obs: dict[str, Tensor], recall: Recall | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Parameters, values, features and beliefs."""
        with self._autocast(next(iter(obs.values()))):
            seen = self.see(obs)
            features = self._features(seen)
            belief = self._remember(features, recall) if recall is not None else features
            return *self._last_layers(obs, seen, belief), features, belief

    @property
    def num_action_features(self) -> int:
        return sum(flat_size(leaf) for leaf in self._actions)

    def action_features(self, actions: dict[str, Tensor]) -> Tensor:
        """[M, num_action_features]: actions as the environment takes them; choices one-hot."""
        taken = self.head.env_actions(actions)
        return torch.cat([flatten(taken[leaf.name], leaf) for leaf in self._actions], 1)

    def _features(self, seen: dict[str, Tensor]) -> Tensor:
        """The input of the core."""
        features = self.trunk(seen)
        return self.core.inputs(features, seen) if isinstance(self.core, PlannedCore) else features

    def _remember(self, features: Tensor, recall: Recall) -> Tensor:
        if recall.episode_start is not None:
            columns = features.view(*recall.episode_start.shape, -1)
            return scan(self.core, columns, recall.episode_start, recall.state).flatten(0, 1)
        assert recall.batch_sizes is not None
        return sequence(self.core, features, recall.batch_sizes, recall.state)

    def _autocast(self, example: Tensor) -> contextlib.AbstractContextManager:
        if self.precision == torch.float32:
            return contextlib.nullcontext()
        # Casts are not cached: a recorded graph would keep a cast of old weights.
        return torch.autocast(example.device.type, self.precision, cache_enabled=False)

    def absorb(self, obs: dict[str, Tensor], rows: Tensor, group: Group) -> None:
        """Update the normalisers with `rows` of observations, of all ranks together."""
        obs = channels_first(obs, self._channels_last)
        for name, normalizer in zip(self.names, self.normalizers, strict=True):
            if isinstance(normalizer, ObservationNormalizer) and not normalizer.is_frozen:
                normalizer.absorb(group.sum_(normalizer.sums(obs[name][rows])))

    def see(self, obs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Observations as the trunks take them: channels first, and normalised if that is configured."""
        obs = channels_first(obs, self._channels_last)
        if not self.normalizes:
            return obs
        return {name: normalizer(obs[name]) for name, normalizer in zip(self.names, self.normalizers, strict=True)}

    def _last_layers(self, obs: dict[str, Tensor], seen: dict[str, Tensor], features: Tensor) -> tuple[Tensor, Tensor]:
        """The head's parameters and the values."""
        features = features.to(self.critic.weight.dtype)  # once for both layers: their gradients meet in float32
        mask = {self._actions[0].name: obs[MASK].bool().flatten(1)} if MASK in obs else None
        acting = self.core.split(features)[0] if isinstance(self.core, PlannedCore) else features
        return self.head(acting, mask), self._value(seen, features)

    def _value(self, seen: dict[str, Tensor], features: Tensor | None) -> Tensor:
        if self.critic_trunk is not None:
            features = self.critic_trunk(seen)
        elif isinstance(self.core, PlannedCore) and features is not None:
            features = self.core.split(features)[1]
        return self.critic(features).squeeze(-1)


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
