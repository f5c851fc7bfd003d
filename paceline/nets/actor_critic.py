"""`ActorCritic`: a policy and its value function as a chain of parts.

observations -> normaliser -> encoders (one per image, one for the rest), joined -> core -> head and critic
"""

from __future__ import annotations

import math

from gymnasium import spaces
from torch import Tensor, nn

from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.nets.config import PolicyConfig
from paceline.nets.cores import Core, make_core, scan, sequence
from paceline.nets.heads import make_head
from paceline.nets.images import is_binary, is_channels_last, seen_shape
from paceline.nets.layers import LastLayer
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.planner import PlannedCore
from paceline.nets.ppo_policy import Evaluation, PPOPolicy, Recall
from paceline.nets.trunk import Trunk, channels_first
from paceline.pool.protocol import PoolSpec
from paceline.pool.spaces import MASK


def _require_mask(spec: PoolSpec) -> None:
    """Refuse masks that would be taken for inputs, or for those of another action."""
    for leaf in spec.obs:
        if MASK not in leaf.name.split("."):
            continue
        choosing = [one for one in spec.actions if isinstance(one.space, spaces.Discrete | spaces.MultiDiscrete)]
        fits = choosing == [spec.actions[0]] and math.prod(leaf.shape) == sum(choosing[0].choices)
        if leaf.name != MASK or not fits:
            raise UsageError(
                f"the observation {leaf.name!r} does not fit the actions {spec.action_space}; allowed: one array "
                f"{MASK!r} with a number for each choice of the only Discrete or MultiDiscrete action, the first one"
            )


class ActorCritic(PPOPolicy):
    """A chain of parts. Encoders and core compute in `precision`, the last layers in float32."""

    def __init__(self, spec: PoolSpec, config: PolicyConfig) -> None:
        super().__init__(spec)
        _require_mask(spec)
        inputs = tuple(leaf for leaf in spec.obs if leaf.name != MASK)
        self.is_masked = len(inputs) < len(spec.obs)
        """Whether observations say which actions are allowed."""
        self.names = [leaf.name for leaf in inputs]
        """The observations that are encoded. `normalizers` are in the same order."""
        self._channels_last = [leaf.name for leaf in inputs if is_channels_last(leaf)]
        # Numbers are normalised, one-hot choices are not.
        self.normalizers = nn.ModuleList(
            ObservationNormalizer(seen_shape(leaf), is_board=is_binary(leaf.space))
            if isinstance(leaf.space, spaces.Box)
            else nn.Identity()
            for leaf in inputs
        )
        self.normalizes = config.normalize_obs
        self.trunk = Trunk(inputs, config)
        self.core: Core | PlannedCore
        if config.planner.kind == "none":
            self.core = make_core(self.trunk.out_features, config.core)
            acting = judging = self.core.out_features
        else:
            self.core = PlannedCore(self.trunk, config)
            acting, judging = self.core.controller.out_features, self.core.planner.out_features
        self.head = make_head(spec.actions, acting, config.head)
        self.critic_trunk = Trunk(inputs, config) if config.critic == "separate" else None
        self.critic = LastLayer(judging, 1)
        nn.init.orthogonal_(self.critic.weight, 1.0)
        nn.init.zeros_(self.critic.bias)

    @property
    def state_size(self) -> int:
        return self.core.state_size

    def compile_encoders(self) -> None:
        self.trunk.compile_by_size()
        if self.critic_trunk is not None:
            self.critic_trunk.compile_by_size()

    def act(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with self._autocast(state):
            seen = self.see(obs)
            features, new_state = self.core.step(self._features(seen), state)
            return *self._last_layers(obs, seen, features), new_state

    def value(self, obs: dict[str, Tensor], state: Tensor) -> Tensor:
        with self._autocast(state):
            seen = self.see(obs)
            if self.critic_trunk is not None:
                return self._value(seen, None)
            return self._value(seen, self.core.step(self._features(seen), state)[0])

    def evaluate(self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None) -> Evaluation:
        params, value, features, belief = self._forward(obs, recall)
        return Evaluation(self.head.log_prob(params, actions), self.head.entropy(params), value, features, belief)

    def appraise(
        self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None
    ) -> tuple[Tensor, Tensor]:
        params, value, _, _ = self._forward(obs, recall)
        return self.head.log_prob(params, actions), value

    def _forward(self, obs: dict[str, Tensor], recall: Recall | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Parameters, values, features and beliefs."""
        with self._autocast(next(iter(obs.values()))):
            seen = self.see(obs)
            features = self._features(seen)
            belief = self._remember(features, recall) if recall is not None else features
            return *self._last_layers(obs, seen, belief), features, belief

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

    def absorb(self, obs: dict[str, Tensor], rows: Tensor, group: Group) -> None:
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
