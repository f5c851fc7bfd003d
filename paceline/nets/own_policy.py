"""A whole policy of the user's own: `--policy.kind package.module:Class`.

Legend: B rows, D numbers of recurrent state, P parameters of an action distribution.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from paceline.errors import UsageError
from paceline.nets.config import PolicyConfig
from paceline.nets.fit import checking, require_actions, require_results
from paceline.nets.heads import ActionHead
from paceline.nets.ppo_policy import Evaluation, PPOPolicy, Recall
from paceline.nets.registry import ROWS, Part, build, require_call, require_shape
from paceline.pool.protocol import PoolSpec

OPTION = "policy.kind"
POLICY = Part("a policy", "(spec, config)", ("forward", "head", "state_size"))


class PolicyModule(Protocol):
    """What a policy of your own has. It is an `nn.Module`.

    It acts and learns in the same mode, and several copies of it may exist: no dropout, no batch normalisation, and all
    of its state in parameters and buffers.
    """

    state_size: int
    """D: numbers of recurrent state; 0 for no memory. A state is zero when an episode begins."""
    head: ActionHead
    """The distribution of actions: `paceline.nets.heads.make_head(spec.actions, num_features, config.head)`, or any
    object with its methods `sample`, `mode`, `log_prob`, `entropy`, `env_actions` and its attribute `max_entropy`."""

    def __init__(self, spec: PoolSpec, config: PolicyConfig) -> None:
        """`spec` has `observation_space`, `action_space`, and their leaves, `obs` and `actions`. `config` has the
        settings of the section `policy`, to use or to ignore."""
        ...

    def forward(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Observations by the names of `spec.obs`, as the environment gives them, with B rows in front, and states [B,
        D]. Returns parameters of the action distribution [B, P], values [B] and states after the step [B, D]. It does
        not change what it was given."""
        ...


class OwnPolicy(PPOPolicy):
    """A policy of the user's own, as the PPO systems need it. Sequences go through it step by step."""

    has_exact_last_layers = False

    def __init__(self, spec: PoolSpec, config: PolicyConfig) -> None:
        super().__init__(spec)
        self.own: Any = build(POLICY, OPTION, config.kind, {}, spec, config)
        self._require_fit(spec, config.kind)

    @property
    def head(self) -> ActionHead:  # type: ignore[override]
        return self.own.head

    @property
    def state_size(self) -> int:
        return self.own.state_size

    def act(self, obs: dict[str, Tensor], state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        with self._autocast(state):
            params, value, after = self.own(obs, state)
        return params.float(), value.float(), after.float()

    def value(self, obs: dict[str, Tensor], state: Tensor) -> Tensor:
        return self.act(obs, state)[1]

    def evaluate(self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None) -> Evaluation:
        """The features and beliefs are the parameters of the action distribution."""
        params, value = self._unroll(obs, recall)
        return Evaluation(self.head.log_prob(params, actions), self.head.entropy(params), value, params, params)

    def appraise(
        self, obs: dict[str, Tensor], actions: dict[str, Tensor], recall: Recall | None
    ) -> tuple[Tensor, Tensor]:
        params, value = self._unroll(obs, recall)
        return self.head.log_prob(params, actions), value

    def _unroll(self, obs: dict[str, Tensor], recall: Recall | None) -> tuple[Tensor, Tensor]:
        """Parameters [M, P] and values [M]."""
        if recall is None:
            count = len(next(iter(obs.values())))
            return self.act(obs, self.initial_state(count).to(self.version.device))[:2]
        starts, state = recall.episode_start, recall.state
        sizes = [starts.shape[1]] * len(starts) if starts is not None else recall.batch_sizes.tolist()  # type: ignore[union-attr]
        steps = zip(*(values.split(sizes) for values in obs.values()), strict=True)
        found = []
        for number, rows in enumerate(steps):
            state = state[: sizes[number]]  # packed sequences are sorted by falling length
            if starts is not None:
                state = torch.where(starts[number][:, None], 0.0, state)
            params, value, state = self.act(dict(zip(obs, rows, strict=True)), state)
            found.append((params, value))
        params, value = (torch.cat(parts) for parts in zip(*found, strict=True))
        return params, value

    def _require_fit(self, spec: PoolSpec, name: str) -> None:
        """Refuse a class whose results do not have the shapes of `PolicyModule`."""
        if not isinstance(self.state_size, int) or self.state_size < 0:
            raise UsageError(f"{OPTION} {name}: state_size is {self.state_size!r}; allowed: a whole number from 0")
        obs, state = self.example(ROWS), self.initial_state(ROWS)
        require_call(OPTION, name, self.own.forward, "forward takes (obs, state)", obs, state)
        with checking(OPTION, name):
            found = self.own(obs, state)
            allowed = "the parameters of actions, the values and the states"
            params, value, after = require_results(OPTION, name, found, 3, allowed)
            require_actions(OPTION, name, self.head, spec.actions, params)
        require_shape(OPTION, name, "values", value, (ROWS,))
        require_shape(OPTION, name, "states", after, (ROWS, self.state_size))
