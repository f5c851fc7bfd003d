"""The learner of the PPO systems: epochs of mini-batches over one rollout, gradients averaged over the ranks.

B rows of a mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.distributed.reduce import FlatGradients
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.rollout import Rollout
from paceline.experience.sequences import MiniBatch, shuffled_rows, shuffled_sequences, valid_rows
from paceline.learner.optimizer import OptimizerConfig, make_optimizer, set_rate
from paceline.ops.ppo import approximate_kl, clipped_surrogate, value_loss
from paceline.policy.actor_critic import ActorCritic

METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "grad_norm")


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """How a rollout is learned from."""

    epochs: int = 2
    """Passes over each rollout."""
    minibatches: int = 2
    """Gradient steps per pass."""
    discount: float = 0.99
    """Gamma: what a reward one step later is worth."""
    trace_decay: float = 0.95
    """Lambda (DD-PPO's tau) of generalized advantage estimation."""
    clip: float = 0.2
    """Epsilon: how far the probability ratio may move before it gains nothing more."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    value_clip: float | None = None
    """Limit a value's change per rollout to this; None does not."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus."""
    normalize_advantage: bool = False
    """Give advantages mean 0 and deviation 1 over the rollouts of all ranks; DD-PPO does not."""
    target_kl: float | None = None
    """Stop the passes over a rollout once the policy has moved this far; None never does."""

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise UsageError(f"ppo.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("discount", "trace_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"ppo.{name} must be between 0 and 1, got {getattr(self, name)}")
        if not self.clip > 0:
            raise UsageError(f"ppo.clip must be above 0, got {self.clip}")


class PPOLearner:
    """Owns the optimiser. `update` is called by all ranks together."""

    def __init__(
        self,
        policy: ActorCritic,
        group: Group,
        config: PPOConfig,
        optimizer_config: OptimizerConfig,
        generator: torch.Generator | None = None,
    ) -> None:
        self._policy, self._group, self.config, self._optimizer_config = policy, group, config, optimizer_config
        self._gradients = FlatGradients(policy.parameters())
        self.optimizer = make_optimizer(policy.parameters(), optimizer_config)
        self._generator = generator
        self.version = 0
        """How many updates the policy has had: the number that its next decisions carry."""

    def update(self, rollout: Rollout, progress: float) -> dict[str, float]:
        """Learn from a finished rollout, after a share `progress` of the run; means over all ranks' rows."""
        set_rate(self.optimizer, self._optimizer_config.rate_at(progress))
        advantage = self._advantages(rollout)
        returns = rollout.returns
        totals = torch.zeros(len(METRICS) + 1, device=self._group.device)
        split = shuffled_sequences if self._policy.is_recurrent else shuffled_rows
        for _ in range(self.config.epochs):
            before = totals.clone()
            for batch in split(rollout, self.config.minibatches, self._generator):
                totals += self._step(rollout, batch, advantage, returns)
            if self._moved_too_far(totals - before):
                break
        self.version += 1
        return self._report(totals)

    def _advantages(self, rollout: Rollout) -> Tensor:
        """Advantages as they are, or normalised by the moments of all ranks' valid rows, weighted by their counts."""
        advantage = rollout.advantage
        if not self.config.normalize_advantage:
            return advantage
        valid = advantage[valid_rows(rollout)]
        count = torch.tensor(float(len(valid)), device=valid.device)
        sums = self._group.sum_(torch.stack([count, valid.sum(), valid.square().sum()]))
        mean = sums[1] / sums[0]
        variance = (sums[2] / sums[0] - mean.square()).clamp(min=0.0)
        return (advantage - mean) / (variance.sqrt() + 1e-8)

    def _step(self, rollout: Rollout, batch: MiniBatch, advantage: Tensor, returns: Tensor) -> Tensor:
        """One gradient step: sums of every metric over the rows, and their number."""
        self._gradients.zero()
        sums = torch.zeros(len(METRICS) + 1, device=self._group.device)
        rows = batch.rows.to(self._group.device)
        if len(rows):  # a rank without a valid row still takes part in the reduction, with nothing
            sums = self._backward(rollout, batch, rows, advantage[rows], returns[rows])
        self._gradients.average(self._group)
        norm = self._gradients.clip(self._optimizer_config.max_grad_norm)
        self.optimizer.step()
        sums[-2] = norm * len(rows)
        return sums

    def _backward(self, rollout: Rollout, batch: MiniBatch, rows: Tensor, advantage: Tensor, returns: Tensor) -> Tensor:
        config = self.config
        log_prob, entropy, value = self._policy.evaluate(rollout, batch, rows)
        log_ratio = log_prob - rollout.log_prob[rows]
        policy_loss = clipped_surrogate(log_ratio, advantage, config.clip)
        critic_loss = value_loss(value, rollout.value[rows], returns, config.value_clip)
        loss = policy_loss + config.value_coef * critic_loss - config.entropy_coef * entropy
        loss.mean().backward()
        with torch.no_grad():
            clipped = (log_ratio.exp() - 1).abs() > config.clip
            columns = [policy_loss, critic_loss, entropy, approximate_kl(log_ratio), clipped.float()]
            sums = [column.sum() for column in columns]
            return torch.stack([*sums, sums[0].new_zeros(()), sums[0].new_tensor(float(len(rows)))])

    def _moved_too_far(self, sums: Tensor) -> bool:
        if self.config.target_kl is None:
            return False
        sums = self._group.sum_(sums.clone())
        return bool(sums[METRICS.index("approx_kl")] / sums[-1] > self.config.target_kl)

    def _report(self, totals: Tensor) -> dict[str, float]:
        """Means over the rows of all ranks; the one look at the device of an update."""
        *sums, count = self._group.sum_(totals).tolist()
        return {name: total / max(count, 1.0) for name, total in zip(METRICS, sums, strict=True)}

    def state_dict(self) -> dict:
        return {"optimizer": self.optimizer.state_dict(), "version": self.version}

    def load_state_dict(self, state: dict) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.version = state["version"]
