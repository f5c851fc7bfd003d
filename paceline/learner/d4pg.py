"""The learner of D4PG: a distributional critic from n-step transitions, and the policy that it recommends (algorithm 1)."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.replay import Drawn
from paceline.learner.flat import FlatNetwork
from paceline.learner.optimizer import load_moments
from paceline.policy.deterministic import ActionCritic, DeterministicPolicy

METRICS = ("critic_loss", "value", "actor_grad_norm", "critic_grad_norm")


@dataclass(frozen=True, kw_only=True)
class D4PGConfig:
    """How transitions are learned from."""

    batch: int = 256
    """M: transitions of an update."""
    steps: int = 5
    """N: steps of a transition."""
    discount: float = 0.99
    """Gamma."""
    noise: float = 0.3
    """Epsilon: deviation of the Gaussian noise on actions, of which the range is 2."""
    actor_rate: float = 1e-4
    """Learning rate of the policy."""
    critic_rate: float = 1e-4
    """Learning rate of the critic."""
    target_period: int = 100
    """t_target: updates between two copies to the target networks."""
    target_share: float = 1.0
    """How much of the new weights a target network takes over then; with a period of 1, Polyak averaging."""
    max_action_gradient: float | None = 1.0
    """Longer gradients of the value by the action are scaled down to this, as in Acme; None leaves them."""
    max_grad_norm: float | None = None
    """Longer gradients of the weights are scaled down to this; None leaves them."""
    actors_period: int = 1
    """t_actors: updates between two deliveries of the policy to those who act."""
    evaluation_envs: int = 1
    """Environments that act without noise, and that nothing is learned from: their returns are reported as
    evaluation_return. Of few environments none are spared for it: at most one in four."""
    beside: bool = True
    """Collect and learn at the same time; otherwise in turn, as deterministic runs and batched simulators do."""

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "target_period", "actors_period"):
            if getattr(self, name) < 1:
                raise UsageError(f"d4pg.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("actor_rate", "critic_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"d4pg.{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.discount <= 1:
            raise UsageError(f"d4pg.discount must be between 0 and 1, got {self.discount}")
        if not 0 < self.target_share <= 1:
            raise UsageError(f"d4pg.target_share must be above 0 and at most 1, got {self.target_share}")
        for name in ("noise", "evaluation_envs"):
            if getattr(self, name) < 0:
                raise UsageError(f"d4pg.{name} must be at least 0, got {getattr(self, name)}")


class D4PGLearner:
    """Owns the target networks and the optimisers. `update`, or `step` and `count`, are called by all ranks together. The memory of
    both networks' weights moves here: what refers to it is to be made afterwards."""

    def __init__(self, policy: DeterministicPolicy, critic: ActionCritic, group: Group, config: D4PGConfig) -> None:
        self._policy, self._critic, self._group, self._config = policy, critic, group, config
        self._target_policy, self._target_critic = (copy.deepcopy(m).requires_grad_(False) for m in (policy, critic))
        modules = {"critic": critic, "policy": policy}
        targets = {"critic": self._target_critic, "policy": self._target_policy}
        self._networks = {name: FlatNetwork(module) for name, module in modules.items()}
        self._targets = {name: FlatNetwork(module) for name, module in targets.items()}
        rates = {"policy": config.actor_rate, "critic": config.critic_rate}
        self._optimizers = {
            name: torch.optim.Adam([network.values], lr=rates[name], fused=True, capturable=network.values.is_cuda)
            for name, network in self._networks.items()
        }
        self.updates = 0

    def update(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        """One step of critic and policy; metrics on the device, and how surprised the critic was by each row."""
        found = self.step(drawn)
        self.count()
        return found

    def step(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        """`update` but for `count`, which must follow: what the device does the same way every time, and can be recorded.

        The policy follows the critic as it is after its step; in algorithm 1 both move from the same weights.
        """
        obs, next_obs = (_named(drawn.rows, prefix) for prefix in ("obs/", "next_obs/"))
        action, reward, discount = (drawn.rows[name] for name in ("action", "reward", "discount"))
        errors, surprise = self._critic_errors(obs, action, reward, discount, next_obs)
        critic_norm = self._step("critic", (drawn.weight * errors).mean())
        value, surrogate = self._surrogate(obs)
        actor_norm = self._step("policy", surrogate)
        found = (errors.detach().mean(), value.mean(), actor_norm, critic_norm)
        return dict(zip(METRICS, found, strict=True)), surprise

    def count(self) -> None:
        """A step was taken: now and then the targets follow."""
        self.updates += 1
        if self.updates % self._config.target_period == 0:
            for name, target in self._targets.items():
                target.follow(self._networks[name], self._config.target_share)

    def _critic_errors(
        self, obs: dict[str, Tensor], action: Tensor, reward: Tensor, discount: Tensor, next_obs: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """[B]: d(T Z_target, Z), line 6 and 7 of the algorithm; and [B] without gradient, how surprising it was."""
        with torch.no_grad():
            target = self._target_critic(next_obs, self._target_policy(next_obs))
        head, outputs = self._critic.head, self._critic(obs, action)
        loss = head.loss(outputs, reward, discount, target)
        return loss, head.surprise(outputs.detach(), reward, discount, target, loss.detach())

    def _surrogate(self, obs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The critic's mean of what the policy would do [B], and a loss whose gradient is that of the policy: the chain
        rule by hand, so that the value's gradient by the action can be bounded and the critic gets none."""
        action = self._policy(obs)
        given = action.detach().requires_grad_()
        value = self._critic.head.mean(self._critic(obs, given))
        (slope,) = torch.autograd.grad(value.sum(), given)
        if self._config.max_action_gradient is not None:
            norm = slope.norm(dim=1, keepdim=True)
            slope = slope * (self._config.max_action_gradient / norm.clamp(min=1e-12)).clamp(max=1.0)
        return value.detach(), -(slope * action).sum(1).mean()

    def _step(self, name: str, loss: Tensor) -> Tensor:
        """Move one network by the gradients of all ranks; their norm."""
        gradients = self._networks[name].gradients
        gradients.zero()
        loss.backward()
        gradients.average(self._group)
        norm = gradients.clip(self._config.max_grad_norm)
        self._optimizers[name].step()
        return norm

    def state_dict(self) -> dict[str, Any]:
        """All but the policy, which is saved by itself."""
        return {
            "critic": self._critic.state_dict(),
            "target_policy": self._target_policy.state_dict(),
            "target_critic": self._target_critic.state_dict(),
            "optimizers": {name: optimizer.state_dict() for name, optimizer in self._optimizers.items()},
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._critic.load_state_dict(state["critic"])
        self._target_policy.load_state_dict(state["target_policy"])
        self._target_critic.load_state_dict(state["target_critic"])
        for name, optimizer in self._optimizers.items():
            load_moments(optimizer, state["optimizers"][name])
        self.updates = state["updates"]


def _named(rows: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): values for name, values in rows.items() if name.startswith(prefix)}
