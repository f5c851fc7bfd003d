"""`PPOPolicy`: what the PPO systems need of a policy and its value function.

Legend: T steps, B rows, M rows of a mini-batch, K sequences, D numbers of recurrent state, F features, P parameters.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from paceline.distributed.runtime import Group
from paceline.nets.heads import ActionHead
from paceline.nets.layers import has_convolutions
from paceline.nets.trunk import flat_size, flatten
from paceline.pool.protocol import PoolSpec


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


class PPOPolicy(nn.Module):
    """A policy and its value function. There are two: a chain of parts (`ActorCritic`), and a whole policy of the
    user's own (`OwnPolicy`)."""

    version: Tensor
    """[] int64: how many updates these weights have had. A buffer, so that every copy of the weights has it."""
    head: ActionHead
    """The distribution of actions."""
    has_exact_last_layers = True
    """Whether values and actions are computed in float32, whatever the precision."""
    normalizes: bool = False
    """Whether observations are normalised before they are encoded."""

    def __init__(self, spec: PoolSpec) -> None:
        super().__init__()
        self._obs, self._actions = spec.obs, spec.actions
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))
        self.precision = torch.float32

    @property
    def state_size(self) -> int:
        """D: numbers of recurrent state. 0: no memory."""
        raise NotImplementedError

    def act(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Parameters of the action distribution [B, P], value [B] and the state after this step [B, D]."""
        raise NotImplementedError

    def value(self, obs: dict[str, Tensor], state: Tensor) -> Tensor:
        """[B]: V. No state advances."""
        raise NotImplementedError

    def evaluate(self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None) -> Evaluation:
        """Evaluate actions taken. A recurrent policy needs `recall`."""
        raise NotImplementedError

    def appraise(
        self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None
    ) -> tuple[Tensor, Tensor]:
        """The log-probabilities and values of `evaluate`. Draws no random numbers, which an entropy may."""
        raise NotImplementedError

    def absorb(self, obs: dict[str, Tensor], rows: Tensor, group: Group) -> None:
        """Update the normalisers with `rows` of observations, of all ranks together."""

    def compile_encoders(self) -> None:
        """Compile what is worth it, for acting and learning; names and weights stay."""

    @property
    def has_convolutions(self) -> bool:
        """Whether PyTorch's own kernels compute any convolution."""
        return has_convolutions(self)

    @property
    def is_recurrent(self) -> bool:
        return self.state_size > 0

    def initial_state(self, count: int) -> Tensor:
        """[count, D]: the state before the first step of an episode."""
        return torch.zeros(count, self.state_size)

    def example(self, count: int) -> dict[str, Tensor]:
        """Observations of `count` rows, all zero."""
        zeros = {leaf.name: torch.from_numpy(np.zeros((count, *leaf.shape), leaf.dtype)) for leaf in self._obs}
        return {name: values.to(self.version.device) for name, values in zeros.items()}

    def play(
        self, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The most likely actions, or sampled ones with a `generator`, as the environment takes them; the new state."""
        params, _, after = self.act(obs, state)
        actions = self.head.mode(params) if generator is None else self.head.sample(params, generator)
        return self.head.env_actions(actions), after

    @property
    def num_action_features(self) -> int:
        return sum(flat_size(leaf) for leaf in self._actions)

    def action_features(self, actions: dict[str, Tensor]) -> Tensor:
        """[M, num_action_features]: actions as the environment takes them; choices one-hot."""
        taken = self.head.env_actions(actions)
        return torch.cat([flatten(taken[leaf.name], leaf) for leaf in self._actions], 1)

    def _autocast(self, example: Tensor) -> contextlib.AbstractContextManager:
        if self.precision == torch.float32:
            return contextlib.nullcontext()
        # Casts are not cached: a recorded graph would keep a cast of old weights.
        return torch.autocast(example.device.type, self.precision, cache_enabled=False)


@torch.no_grad()
def few_values(policy: PPOPolicy, obs: dict[str, Tensor], state: Tensor) -> Tensor:
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
