"""The learner of D4PG: a distributional critic from n-step transitions, and a policy that follows it (algorithm 1).

Legend: B rows, F features of an observation.

Of images, the critic's loss trains the encoder, and the policy reads its features without a gradient.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.replay import Drawn
from paceline.learner.augmentation import RandomShift
from paceline.learner.compiled import CompiledUpdate
from paceline.learner.config import D4PGConfig, OnNonFinite
from paceline.learner.flat import Descending, Encoding, FlatNetwork, TrainedNetwork
from paceline.learner.hyperparameters import OF_D4PG, Hyperparameters
from paceline.learner.optimizer import load_moments, set_rate
from paceline.learner.publication import Publication
from paceline.nets.deterministic import BOUNDS, ActionCritic, DeterministicPolicy, control_parts
from paceline.nets.parts import saved_form
from paceline.stop import Stop

METRICS = ("critic_loss", "value", "actor_grad_norm", "critic_grad_norm")


class Networks(NamedTuple):
    """The networks of algorithm 1."""

    critic: Descending
    policy: Descending
    target_critic: Encoding
    target_policy: Callable[..., Tensor]


class D4PGLearner:
    """One policy with its critic, target networks, optimisers, hyper-parameters and published weights.

    All ranks call `update` together. Where a step is recorded, the caller calls its parts instead:
    `apply_hyperparameters`, `step` and `count`. Both networks get new memory: take references to their weights only
    afterwards.
    """

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
        """`compiled` compiles the whole update; only for a group of one."""
        if compiled and group.size > 1:
            raise ValueError("ranks average gradients in the middle of an update, so it cannot be compiled as a whole")
        self.hyperparameters, self._revision = Hyperparameters(OF_D4PG, d4pg=config), 0
        self._head, self._parts = critic.head, control_parts(policy)
        self._group = group
        shared = (config.max_grad_norm, group, stop, on_nonfinite)
        decay = config.weight_decay
        self._critic = TrainedNetwork(critic, config.critic_rate, *shared, weight_decay=decay)
        self._policy = TrainedNetwork(policy, config.actor_rate, *shared, borrowed=critic.encoder, weight_decay=decay)
        self._target_policy, self._target_critic = _targets(policy, critic)
        self._shift = _random_shift(critic.encoder.images, config.random_shift)
        self.trained = {"critic": self._critic, "policy": self._policy}
        networks = Networks(self._critic, self._policy, self._target_critic, self._target_policy)
        self._improve: Callable[[Drawn], tuple[Tensor, ...]] = (
            CompiledUpdate(self._algorithm, networks) if compiled else functools.partial(self._algorithm, networks)
        )
        self.publication = Publication(policy)
        self._restored: dict[str, Tensor] = {}
        """What actors acted with when the run was saved, if these were not the latest weights."""
        self.updates = 0

    @property
    def policy(self) -> DeterministicPolicy:
        assert isinstance(self._policy.module, DeterministicPolicy)
        return self._policy.module

    @property
    def config(self) -> D4PGConfig:
        """With the current hyper-parameters."""
        return self.hyperparameters.section("d4pg")

    def learning_rate(self, progress: float) -> float:
        """The learning rate of the policy. It is constant."""
        return self.config.actor_rate

    def publish(self) -> None:
        """Make the present weights those that readers of `publication` get; after a resume, those that they had."""
        self.publication.publish()
        if self._restored:
            self.publication.restore(self._restored)
            self._restored = {}

    def update(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        """One step of critic and policy. Returns metrics on the device, and the critic's error for each row."""
        self.apply_hyperparameters()
        found = self.step(drawn)
        self.count()
        return found

    def apply_hyperparameters(self) -> None:
        if self._revision == self.hyperparameters.revision:
            return
        self._revision, config = self.hyperparameters.revision, self.config
        for network, rate in ((self._policy, config.actor_rate), (self._critic, config.critic_rate)):
            set_rate(network.optimizer, rate)
            if network.max_grad_norm is not None and config.max_grad_norm is not None:
                network.max_grad_norm.fill_(config.max_grad_norm)

    def step(self, drawn: Drawn) -> tuple[dict[str, Tensor], Tensor]:
        """The part of `update` that the device computes the same way every time. It can be recorded."""
        seen = drawn if self._shift is None else dataclasses.replace(drawn, rows=self._shift(drawn.rows))
        *metrics, errors = self._improve(self._normalized(seen))
        # A stop during the update above ends it on all ranks. So either all ranks get here, or none does.
        self.policy.absorb(_named(drawn.rows, "obs/"), self._group)
        return dict(zip(METRICS, metrics, strict=True)), errors

    def _normalized(self, drawn: Drawn) -> Drawn:
        if not self.policy.normalized:
            return drawn
        rows = dict(drawn.rows)
        for prefix in ("obs/", "next_obs/"):
            seen = self.policy.normalize(_named(rows, prefix))
            rows |= {f"{prefix}{name}": values for name, values in seen.items()}
        return dataclasses.replace(drawn, rows=rows)

    def count(self) -> None:
        """Count a step. Updates the target networks and publishes the policy when their periods are over."""
        self.updates += 1
        config = self.config
        if self.updates % config.target_period == 0:
            self._target_critic.follow(self._critic, config.target_share)
            self._target_policy.follow(self._policy, config.target_share)
        if self.updates % config.actors_period == 0:
            self.publish()

    @property
    def compiles_next(self) -> bool:
        """Whether the next step compiles first. No other thread may use a network meanwhile."""
        return isinstance(self._improve, CompiledUpdate) and not self._improve.is_compiled

    def stop_together(self) -> None:
        """Raise `StopRun` on all ranks, in place of the next step."""
        self._critic.stop_together()

    def check(self, losses: Mapping[str, Tensor]) -> dict[str, float]:
        """The latest losses on the host. Raises `NonFiniteError` as `on_nonfinite` says."""
        told = {name: float(value) for name, value in losses.items()}
        skipped = [trained.steps.check(told, self.updates) for trained in self.trained.values()]
        return told | {name: sum(counts[name] for counts in skipped) for name in skipped[0]}

    def _algorithm(self, networks: Networks, drawn: Drawn) -> tuple[Tensor, ...]:
        """Lines 6 to 8 of algorithm 1: the metrics, and the error of every row.

        The policy follows the critic after the critic's step. In the paper both move from the same weights.
        """
        features = networks.critic.encode(_named(drawn.rows, "obs/"))
        losses, errors = self._critic_losses(networks, features, drawn.rows)
        critic_norm = networks.critic.descend((drawn.weight * losses).mean())
        value, surrogate = self._surrogate(networks, features.detach())
        actor_norm = networks.policy.descend(surrogate)
        return losses.detach().mean(), value.mean(), actor_norm, critic_norm, errors

    def _critic_losses(self, networks: Networks, features: Tensor, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """[B]: d(T Z_target, Z), lines 6 and 7; and [B] without gradient, the errors that set priorities."""
        action, reward, discount = (rows[name] for name in ("action", "reward", "discount"))
        with torch.no_grad():
            after = networks.target_critic.encode(_named(rows, "next_obs/"))
            target = networks.target_critic(after, networks.target_policy(after))
        outputs = networks.critic(features, action)
        loss = self._head.loss(outputs, reward, discount, target)
        return loss, self._head.surprise(outputs.detach(), reward, discount, target, loss.detach())

    def _surrogate(self, networks: Networks, features: Tensor) -> tuple[Tensor, Tensor]:
        """The critic's mean for the policy's actions [B], and a loss whose gradient is the policy gradient. The chain
        rule is written out, so that dQ/da can be bounded and the critic gets no gradient. `features` [B, F] have no
        gradient: the policy does not train the encoder."""
        action = networks.policy(features)
        given = action.detach().requires_grad_()
        value = self._head.mean(networks.critic(features, given))
        (slope,) = torch.autograd.grad(value.sum(), given)
        bound = self.config.max_action_gradient
        if bound is not None:
            slope = slope * (bound / slope.norm(dim=1, keepdim=True).clamp(min=1e-12)).clamp(max=1.0)
        return value.detach(), -(slope * action).sum(1).mean()

    def rank_state(self) -> dict[str, Any]:
        """Nothing of the learner differs between ranks."""
        return {}

    def load_rank_state(self, state: dict[str, Any], *, own: bool) -> None: ...

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        """All but the policy, which is saved by itself."""
        return {
            "critic": self._critic.module.state_dict(),
            "target_policy": self._target_policy.module.state_dict(),
            "target_critic": self._target_critic.module.state_dict(),
            "optimizers": {name: trained.optimizer.state_dict() for name, trained in self.trained.items()},
            "updates": self.updates,
            "hyperparameters": self.hyperparameters.state_dict(),
            "parts": saved_form(self._parts),
            "published": self._published() if self.config.actors_period > 1 else {},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._restored = state.get("published", {})
        self._critic.module.load_state_dict(state["critic"])
        self._target_policy.module.load_state_dict(state["target_policy"])
        self._target_critic.module.load_state_dict(state["target_critic"])
        for name, trained in self.trained.items():
            load_moments(trained.optimizer, state["optimizers"][name])
        self.updates = state["updates"]
        self.hyperparameters.load_state_dict(state.get("hyperparameters", {}))

    def _published(self) -> dict[str, Tensor]:
        """What actors act with, but for the bounds, which are those of the environment."""
        return {name: values for name, values in self.publication.state_dict().items() if name not in BOUNDS}


def _random_shift(images: Mapping[str, bool], pad: int) -> RandomShift | None:
    if pad and not images:
        raise UsageError(f"d4pg.random_shift is {pad}, but no observation is an image; allowed: 0")
    return RandomShift(images, pad) if pad else None


def _targets(policy: DeterministicPolicy, critic: ActionCritic) -> tuple[FlatNetwork, FlatNetwork]:
    """Copies that are not trained, but `follow`. They share an encoder as the networks do."""
    policy, critic = copy.deepcopy((policy, critic))
    targets = FlatNetwork(policy, borrowed=critic.encoder), FlatNetwork(critic)
    for target in targets:
        target.module.requires_grad_(False)
    return targets


def _named(rows: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): values for name, values in rows.items() if name.startswith(prefix)}
