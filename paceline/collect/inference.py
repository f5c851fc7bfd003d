"""`Inference`: samples actions of a policy for a batch of observations, in the fastest way for that policy and device.

Legend: B rows of a batch, D numbers of recurrent state.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.accel.config import ComputeConfig
from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.perceptron import Perceptron
from paceline.nets.ppo_policy import PPOPolicy


class Choice(NamedTuple):
    """Actions of B rows."""

    actions: dict[str, Tensor]
    log_prob: Tensor
    value: Tensor
    state: Tensor
    """[B, D]: after the step."""


class Inference:
    """Samples actions for up to `most` rows: by NumPy, by recorded graphs, or by plain PyTorch. For one thread."""

    def __init__(
        self,
        policy: PPOPolicy,
        most: int,
        device: torch.device,
        compute: ComputeConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        self.policy, self._most, self.generator = policy, most, generator
        graphs = device.type == "cuda" and compute.cuda_graphs
        self._graphs: dict[int, RecordedChoice] | None = {} if graphs else None
        self.perceptron = Perceptron(policy) if Perceptron.suits(policy, device) else None
        """Computes the policy by NumPy; None where it cannot."""

    @property
    def is_recorded(self) -> bool:
        """Whether work on the device may be recorded."""
        return self._graphs is not None

    @torch.no_grad()
    def __call__(self, obs: dict[str, Tensor], state: Tensor) -> Choice:
        """An action for every row. The result is the caller's."""
        if self.perceptron is not None:
            return Choice(*self.perceptron.choose(obs), state)
        if self._graphs is None:
            return choose(self.policy, obs, state, self.generator)
        bucket = bucket_of(len(state), self._most)
        if bucket not in self._graphs:
            self._graphs[bucket] = RecordedChoice(self.policy, obs, state, bucket, self.generator)
        return self._graphs[bucket](obs, state)


def choose(
    policy: PPOPolicy, obs: dict[str, Tensor], state: Tensor, generator: torch.Generator | None = None
) -> Choice:
    """Sample an action for every row, by plain PyTorch."""
    params, value, after = policy.act(obs, state)
    actions = policy.head.sample(params, generator)
    return Choice(actions, policy.head.log_prob(params, actions), value, after)


def bucket_of(count: int, most: int) -> int:
    """The size of the recording that serves `count` rows: all rows, or the next power of two."""
    return most if count == most else min(most, 1 << max(0, count - 1).bit_length())


class RecordedChoice:
    """`choose` for up to `bucket` rows, recorded once and replayed. Rows beyond the batch are computed and dropped."""

    def __init__(
        self,
        policy: PPOPolicy,
        obs: dict[str, Tensor],
        state: Tensor,
        bucket: int,
        generator: torch.Generator | None = None,
    ) -> None:
        self._obs = {name: values.new_zeros((bucket, *values.shape[1:])) for name, values in obs.items()}
        self._state = state.new_zeros((bucket, *state.shape[1:]))
        self._graph = CudaGraph(lambda: choose(policy, self._obs, self._state, generator), generator)

    def __call__(self, obs: dict[str, Tensor], state: Tensor) -> Choice:
        """The result is a copy, because the next replay overwrites what was computed."""
        count = len(state)
        for name, values in obs.items():
            self._obs[name][:count].copy_(values, non_blocking=True)
        self._state[:count].copy_(state)
        actions, *others = self._graph.run()
        return Choice(
            {name: values[:count].clone() for name, values in actions.items()}, *(o[:count].clone() for o in others)
        )
