"""`LossRows`: the rows of a mini-batch, as auxiliary losses and loss terms get them.

Legend: M rows, F features, D numbers of a belief, A numbers of an action.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from paceline.learner.minibatches import Sample
from paceline.nets.ppo_policy import Evaluation, PPOPolicy, Recall
from paceline.nets.registry import ROWS


class LossRows(NamedTuple):
    """Rows of a mini-batch, on the learner's device. Gradients flow through what the present weights compute."""

    obs: dict[str, Tensor]
    """[M, ...] by name: observations as the environment gives them."""
    actions: dict[str, Tensor]
    """[M, ...] by name: the actions taken, as the action head samples them."""
    action_features: Tensor
    """[M, A]: the actions taken as numbers, choices one-hot."""
    log_prob: Tensor
    """[M]: of the actions taken, under the present weights. With gradient."""
    old_log_prob: Tensor
    """[M]: the same, under the weights that acted."""
    entropy: Tensor
    """[M]: of the action distribution. With gradient."""
    value: Tensor
    """[M]: V of the present weights. With gradient."""
    advantage: Tensor
    """[M]."""
    returns: Tensor
    """[M]: the targets of `value`."""
    features: Tensor
    """[M, F]: the encoded observations. With gradient. Of a whole policy of the user's own: the parameters of its
    action distribution."""
    belief: Tensor
    """[M, D]: the output of the memory; without memory, the features. With gradient."""
    valid: Tensor | None
    """[M] bool: rows that count; None for all. Other rows may hold any numbers."""
    recall: Recall | None
    """How the rows form sequences. None for a policy without memory."""

    @classmethod
    def of(
        cls, policy: PPOPolicy, sample: Sample, evaluation: Evaluation, advantage: Tensor, returns: Tensor
    ) -> LossRows:
        return cls(
            obs=sample.obs,
            actions=sample.actions,
            action_features=policy.action_features(sample.actions),
            log_prob=evaluation.log_prob,
            old_log_prob=sample.log_prob,
            entropy=evaluation.entropy,
            value=evaluation.value,
            advantage=advantage,
            returns=returns,
            features=evaluation.features,
            belief=evaluation.belief,
            valid=sample.valid,
            recall=sample.recall,
        )

    def mean(self, values: Tensor) -> Tensor:
        """[]: the mean of `values` [M] over the rows that count."""
        return values.mean() if self.valid is None else mean_of(values, self.valid)

    def following(self) -> tuple[Tensor, Tensor]:
        """[M] rows: the next row of the same episode, and the row itself where there is none; [M] bool: whether there
        is one. Rows of a policy without memory are shuffled, and none has a next row."""
        count, device = len(self.log_prob), self.log_prob.device
        if self.recall is None:
            return torch.arange(count, device=device), torch.zeros(count, dtype=torch.bool, device=device)
        return successors(self.recall, self.valid, count)


def successors(recall: Recall, valid: Tensor | None, num_rows: int) -> tuple[Tensor, Tensor]:
    """[M] rows: the next row of the same sequence, and the row itself for the last one; [M] bool: whether there is a
    next."""
    if recall.batch_sizes is not None:  # on the host
        sizes, rows = recall.batch_sizes, torch.arange(num_rows)
        places = rows - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        # Packed order: a sequence has the same place in every block, while it lasts.
        continues = places < F.pad(sizes[1:], (0, 1)).repeat_interleave(sizes)
        following = torch.where(continues, rows + sizes.repeat_interleave(sizes), rows)
        return following.to(recall.state.device), continues.to(recall.state.device)
    assert recall.episode_start is not None and valid is not None
    start, valid = recall.episode_start, valid.view_as(recall.episode_start)
    continues = F.pad(valid[:-1] & valid[1:] & ~start[1:], (0, 0, 0, 1)).flatten()
    rows = torch.arange(num_rows, device=start.device)
    return torch.where(continues, rows + start.shape[1], rows), continues


def mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """[]: the mean where `mask` is set; 0 where it is set nowhere."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def example_rows(policy: PPOPolicy) -> LossRows:
    """A few rows of zeros, to check losses of the user's own before training."""
    obs, state = policy.example(ROWS), policy.initial_state(ROWS).to(policy.version.device)
    with torch.no_grad():
        actions = policy.head.sample(policy.act(obs, state)[0])
    columns = torch.zeros(ROWS // 2, 2, dtype=torch.bool, device=state.device)
    recall = Recall(state[:2], episode_start=columns) if policy.is_recurrent else None
    evaluation = policy.evaluate(obs, actions, recall)
    zeros = torch.zeros(ROWS, device=state.device)
    sample = Sample(
        obs=obs,
        actions=actions,
        log_prob=evaluation.log_prob.detach(),
        value=zeros,
        advantage=zeros,
        returns=zeros,
        columns=None,
        lag=zeros,
        weight=None,
        valid=zeros == 0,
        recall=recall,
    )
    return LossRows.of(policy, sample, evaluation, zeros, zeros)
