"""The learner of D4PG: a distributional critic from n-step transitions, and the policy that it recommends (algorithm 1)."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.distributed.runtime import Group
from paceline.experience.replay import Drawn
from paceline.learner.compiled import CompiledUpdate
from paceline.learner.config import D4PGConfig, OnNonFinite
from paceline.learner.flat import Descending, FlatNetwork, Trained
from paceline.learner.optimizer import load_moments
from paceline.nets.deterministic import ActionCritic, DeterministicPolicy
from paceline.stop import Stop

METRICS = ("critic_loss", "value", "actor_grad_norm", "critic_grad_norm")


class Networks(NamedTuple):
    """Those of algorithm 1."""

    critic: Descending
    policy: Descending
    target_critic: Callable[..., Tensor]
    target_policy: Callable[..., Tensor]


class D4PGLearner:
    """Owns the target networks and the optimisers. `update`, or `step` and `count`, are called by all ranks together. The memory of
    both networks' weights moves here: what refers to it is to be made afterwards."""

    def __init__(
        self,
        policy: DeterministicPolicy,
        critic: ActionCritic,
        group: Group,
        config: D4PGConfig,
        *,
        compiled: bool = False,
        stop: Stop | None = None,
        on_nonfinite: OnNonFinite = "stop",
    ) -> None:
        """`compiled`: compute the whole update by compiled code; only for a group of one."""
        if compiled and group.size > 1:
            raise ValueError("ranks meet in the middle of an update, which therefore cannot be compiled as a whole")
        self._config, self._head = config, critic.head
        self._policy, self._critic = (
            Trained(module, rate, config.max_grad_norm, group, stop, on_nonfinite)
            for module, rate in ((policy, config.actor_rate), (critic, config.critic_rate))
        )
        self._target_policy, self._target_critic = (
            FlatNetwork(copy.deepcopy(module).requires_grad_(False)) for module in (policy, critic)
        )
        networks = Networks(self._critic, self._policy, self._target_critic, self._target_policy)
        self._improve: Callable[[Drawn], tuple[Tensor, ...]] = (
            CompiledUpdate(self._algorithm, networks) if compiled else functools.partial(self._algorithm, networks)
        )
        self.updates = 0

    def update(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        """One step of critic and policy; metrics on the device, and how surprised the critic was by each row."""
        found = self.step(drawn)
        self.count()
        return found

    def step(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        """`update` but for `count`, which must follow: what the device does the same way every time, and can be recorded."""
        *metrics, surprise = self._improve(drawn)
        return dict(zip(METRICS, metrics, strict=True)), surprise

    @property
    def compiles_next(self) -> bool:
        """Whether the next step is compiled first. No other thread may use a network meanwhile."""
        return isinstance(self._improve, CompiledUpdate) and not self._improve.is_compiled

    def stop_together(self) -> None:
        """Raise `StopRun` on all ranks, in place of the next step."""
        self._critic.stop_together()

    def check(self, losses: Mapping[str, Tensor]) -> dict[str, float]:
        """The latest losses on the host; raises `NonFiniteError`, as `on_nonfinite` asks for."""
        told = {name: float(value) for name, value in losses.items()}
        skipped = [trained.steps.check(told, self.updates) for trained in self.trained.values()]
        return told | {name: sum(counts[name] for counts in skipped) for name in skipped[0]}

    def count(self) -> None:
        """A step was taken: now and then the targets follow."""
        self.updates += 1
        if self.updates % self._config.target_period == 0:
            self._target_critic.follow(self._critic, self._config.target_share)
            self._target_policy.follow(self._policy, self._config.target_share)

    def _algorithm(self, networks: Networks, drawn: Drawn) -> tuple[Tensor, ...]:
        """Lines 6 to 8 of algorithm 1: the metrics, and the surprise of every row.

        The policy follows the critic as it is after its step; in the paper both move from the same weights.
        """
        obs = _named(drawn.rows, "obs/")
        errors, surprise = self._critic_errors(networks, obs, drawn.rows)
        critic_norm = networks.critic.descend((drawn.weight * errors).mean())
        value, surrogate = self._surrogate(networks, obs)
        actor_norm = networks.policy.descend(surrogate)
        return errors.detach().mean(), value.mean(), actor_norm, critic_norm, surprise

    def _critic_errors(
        self, networks: Networks, obs: dict[str, Tensor], rows: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """[B]: d(T Z_target, Z), line 6 and 7 of the algorithm; and [B] without gradient, how surprising it was."""
        next_obs = _named(rows, "next_obs/")
        action, reward, discount = (rows[name] for name in ("action", "reward", "discount"))
        with torch.no_grad():
            target = networks.target_critic(next_obs, networks.target_policy(next_obs))
        outputs = networks.critic(obs, action)
        loss = self._head.loss(outputs, reward, discount, target)
        return loss, self._head.surprise(outputs.detach(), reward, discount, target, loss.detach())

    def _surrogate(self, networks: Networks, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The critic's mean of what the policy would do [B], and a loss whose gradient is that of the policy: the chain
        rule by hand, so that the value's gradient by the action can be bounded and the critic gets none."""
        action = networks.policy(obs)
        given = action.detach().requires_grad_()
        value = self._head.mean(networks.critic(obs, given))
        (slope,) = torch.autograd.grad(value.sum(), given)
        if self._config.max_action_gradient is not None:
            norm = slope.norm(dim=1, keepdim=True)
            slope = slope * (self._config.max_action_gradient / norm.clamp(min=1e-12)).clamp(max=1.0)
        return value.detach(), -(slope * action).sum(1).mean()

    def state_dict(self) -> dict[str, Any]:
        """All but the policy, which is saved by itself."""
        return {
            "critic": self._critic.module.state_dict(),
            "target_policy": self._target_policy.module.state_dict(),
            "target_critic": self._target_critic.module.state_dict(),
            "optimizers": {name: trained.optimizer.state_dict() for name, trained in self.trained.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._critic.module.load_state_dict(state["critic"])
        self._target_policy.module.load_state_dict(state["target_policy"])
        self._target_critic.module.load_state_dict(state["target_critic"])
        for name, trained in self.trained.items():
            load_moments(trained.optimizer, state["optimizers"][name])
        self.updates = state["updates"]

    @property
    def trained(self) -> dict[str, Trained]:
        return {"critic": self._critic, "policy": self._policy}


def _named(rows: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): values for name, values in rows.items() if name.startswith(prefix)}
