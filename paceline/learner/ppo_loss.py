"""PPO's loss over the rows of a mini-batch, and the sums of its metrics. M rows."""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.distributed.runtime import Group
from paceline.learner.advantages import normalize
from paceline.learner.auxiliary import CPCA
from paceline.learner.config import PPOConfig
from paceline.learner.entropy import EntropyCoefficient
from paceline.learner.hyperparameters import Scalars
from paceline.learner.loss_rows import LossRows
from paceline.learner.minibatches import Sample
from paceline.learner.own_losses import LossTerm, OwnAuxiliary
from paceline.learner.vtrace_columns import trace_columns
from paceline.nets.ppo_policy import Evaluation, PPOPolicy
from paceline.ops.ppo import approximate_kl, clipped_surrogate, policy_gradient, value_loss
from paceline.ops.ratio import ratio_of

ROW_METRICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction", "policy_lag")
TERM_METRICS = ("term_loss",)


class PPOLoss:
    """L = L_policy + value_coef * L_value - entropy_coef * H + term_coef * L_term, averaged over the valid rows, plus
    an auxiliary loss. The last two are optional.

    With a `coefficient` the weight of the entropy is learned. Nothing here waits for the device.
    """

    def __init__(
        self,
        policy: PPOPolicy,
        group: Group,
        config: PPOConfig,
        scalars: Scalars,
        coefficient: EntropyCoefficient | None,
        auxiliary: CPCA | OwnAuxiliary | None,
        term: LossTerm | None = None,
    ) -> None:
        self._policy, self._group, self._config, self._scalars = policy, group, config, scalars
        self._coefficient, self._auxiliary, self._term = coefficient, auxiliary, term
        self.metrics = (*ROW_METRICS, *(TERM_METRICS if term is not None else ()))
        self.metrics += auxiliary.METRICS if auxiliary is not None else ()

    def __call__(self, sample: Sample) -> tuple[Tensor, Tensor]:
        """The mean loss []; the sums of `metrics` over the valid rows, and the number of these rows."""
        evaluation = self._policy.evaluate(sample.obs, sample.actions, sample.recall)
        log_ratio = evaluation.log_prob - sample.log_prob
        advantage, returns = sample.advantage, sample.returns
        if sample.columns is not None:
            advantage, returns = self._vtrace(sample, log_ratio.detach(), evaluation.value.detach())
        policy_loss, is_clipped = self._policy_loss(log_ratio, advantage)
        critic_loss = value_loss(evaluation.value, sample.value, returns, self._config.value_clip)
        loss = policy_loss + self._scalars.value_coef * critic_loss + self._entropy_loss(evaluation.entropy)
        seen = self._seen_by_losses(sample, evaluation, advantage, returns)
        terms = []
        if self._term is not None and seen is not None:
            terms.append(self._term(seen).float())
            loss = loss + self._scalars.term_coef * terms[0]
        if sample.weight is not None:
            loss = loss * sample.weight
        with torch.no_grad():
            kl, clipped = approximate_kl(log_ratio), is_clipped.float()
            rows = torch.stack([policy_loss, critic_loss, evaluation.entropy, kl, clipped, sample.lag, *terms]).detach()
        if sample.valid is None:
            count = loss.new_full((1,), len(loss))
        else:  # `where`, not a product: invalid rows may hold NaN
            loss, rows = torch.where(sample.valid, loss, 0.0), torch.where(sample.valid, rows, 0.0)
            count = sample.valid.sum().float().view(1)
        mean, sums = loss.sum() / count.clamp(min=1.0).squeeze(0), rows.sum(1)
        if self._auxiliary is not None:
            numbers = self._auxiliary(seen)
            mean = mean + self._config.auxiliary.weight * numbers[0]
            sums = torch.cat([sums, torch.stack(numbers).detach() * count])
        if self._config.has_own_losses:
            # A value of the user's own that is not finite makes all gradients so, even if its own gradient is finite.
            mean = mean * (1.0 + 0.0 * sums[len(ROW_METRICS) :].sum())
        return mean, torch.cat([sums, count])

    def _vtrace(self, sample: Sample, log_ratio: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """V-trace's advantages and returns under the present policy."""
        assert sample.columns is not None
        in_advantage = self._config.rho_in_advantage
        traced = trace_columns(sample.columns, log_ratio, value, self._scalars, rho_in_advantage=in_advantage)
        advantage = traced.advantage
        if self._config.normalize_advantage:
            advantage = normalize(advantage, sample.columns.valid.flatten(), self._group)
        return advantage, traced.targets

    def _policy_loss(self, log_ratio: Tensor, advantage: Tensor) -> tuple[Tensor, Tensor]:
        """[M]: the loss, and whether the probability ratio is out of its bounds."""
        bounds, ratio = self._scalars, ratio_of(log_ratio.detach())
        if self._config.clip is None:
            return policy_gradient(log_ratio, advantage, bounds.max_rho), ratio > bounds.max_rho
        loss = clipped_surrogate(log_ratio, advantage, bounds.ratio_low, bounds.ratio_high)
        return loss, (ratio < bounds.ratio_low) | (ratio > bounds.ratio_high)

    def _entropy_loss(self, entropy: Tensor) -> Tensor:
        if self._coefficient is None:
            return -self._scalars.entropy_coef * entropy
        return self._coefficient.loss(entropy)

    def _seen_by_losses(
        self, sample: Sample, evaluation: Evaluation, advantage: Tensor, returns: Tensor
    ) -> LossRows | None:
        """What auxiliary losses and terms get. None if there are none."""
        if self._auxiliary is None and self._term is None:
            return None
        return LossRows.of(self._policy, sample, evaluation, advantage, returns)
