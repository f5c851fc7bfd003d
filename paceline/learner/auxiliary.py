"""Auxiliary losses for a policy's encoder and memory. There is one, CPC|A.

Action-conditional contrastive predictive coding (Guo et al., "Neural Predictive Belief Representations", 2018): from
the policy's memory at a step and its next actions, tell the observation some steps later from observations of other
rows. VER trains its navigation agents with it.

Legend: M rows of a mini-batch, P rows to predict from, K steps ahead, Q predictions for each, N decoys, F features, H
hidden units, A numbers of an action.

All shapes follow from that of the mini-batch and nothing waits for the device, so it can be recorded.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paceline.distributed.reduce import synchronize
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.learner.config import AuxiliaryConfig
from paceline.nets.actor_critic import ActorCritic, Recall
from paceline.nets.config import CoreConfig
from paceline.nets.cores import Core

QUESTIONS = 2
"""Q: of the K steps after a row, so many are predicted. Neighbouring steps look nearly the same."""


def make_auxiliary(policy: ActorCritic, config: AuxiliaryConfig, group: Group) -> CPCA | None:
    """The configured loss with the same weights on all ranks; None for none."""
    if config.kind == "none":
        return None
    if not policy.is_recurrent:
        raise UsageError(
            "auxiliary.kind cpca predicts from a policy's memory, and this policy has none; allowed with it: "
            "policy.core.kind lstm, gru"
        )
    # Only images are compared if there are any: vectors may hold the previous action, which gives the answer away.
    num_features = policy.trunk.num_image_features or policy.trunk.out_features
    loss = CPCA(num_features, policy.core.out_features, policy.num_action_features, config).to(group.device)
    synchronize(loss, group)
    return loss


class Questions(NamedTuple):
    """The predictions to make for one mini-batch. Rows are numbers in [0, M)."""

    path: Tensor
    """[K + 1, P] rows: the row to predict from, and the rows after it. Beyond the end of its sequence: the last row."""
    ahead: Tensor
    """[Q, P]: the step on that path to predict, 0 for the first."""
    answer: Tensor
    """[Q, P] rows: the row at that step."""
    decoys: Tensor
    """[Q, P, N] rows, none of them the answer."""
    is_asked: Tensor
    """[Q, P] bool: the sequence continues after the row."""
    is_fair: Tensor
    """[Q, P, N] bool: and the decoy is a valid row."""


class Prediction(NamedTuple):
    """The result for one mini-batch."""

    loss: Tensor
    """[]: with gradient."""
    accuracy: Tensor
    """[]: the mean of the accuracies on true and on false observations; 0.5 is chance."""


class CPCA(nn.Module):
    """A GRU steps from the belief at a row through the actions after it. A classifier gets the GRU's state and one
    encoded observation, and predicts whether this observation followed."""

    METRICS = ("cpca_loss", "cpca_accuracy")

    def __init__(self, num_features: int, num_belief: int, num_action: int, config: AuxiliaryConfig) -> None:
        super().__init__()
        self.config, self._num_features = config, num_features
        self.start = nn.Linear(num_belief, config.hidden)
        self.future = Core(num_action, CoreConfig(kind="gru", hidden=config.hidden))
        # One layer over both inputs, split in two: each observation is multiplied once, not once per question.
        self.from_future = nn.Linear(config.hidden, config.hidden)
        self.from_features = nn.Linear(num_features, config.hidden, bias=False)
        self.classifier = nn.Sequential(
            nn.ReLU(), nn.Linear(config.hidden, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 1)
        )
        for values in self.parameters():
            (nn.init.orthogonal_ if values.dim() > 1 else nn.init.zeros_)(values)

    def forward(
        self, features: Tensor, belief: Tensor, actions: Tensor, recall: Recall, valid: Tensor | None
    ) -> Prediction:
        """Encoded observations [M, F], the core's outputs [M, D] and actions [M, A] of the rows of a mini-batch.
        `recall` says which sequences they form, `valid` [M] which rows to use."""
        questions = ask(*successors(recall, valid, len(features)), valid, self.config)
        future = self.from_future(self._predict(belief.float(), actions, questions))
        seen = self.from_features(features[:, : self._num_features].float())
        candidates = torch.cat([questions.answer[..., None], questions.decoys], dim=2)
        logits = self.classifier(future[:, :, None] + rows_of(seen, candidates)).squeeze(-1)
        true, false = logits[..., 0], logits[..., 1:]
        loss = mean_of(F.softplus(-true), questions.is_asked) + mean_of(F.softplus(false), questions.is_fair)
        right = mean_of((true > 0).float(), questions.is_asked) + mean_of((false < 0).float(), questions.is_fair)
        return Prediction(loss, right / 2)

    def _predict(self, belief: Tensor, actions: Tensor, questions: Questions) -> Tensor:
        """[Q, P, H]: the GRU's state after the actions that lead to each answer."""
        path = questions.path.unbind()
        first = path[0]
        state, states = torch.tanh(self.start(rows_of(belief, first))), []
        for rows in path[:-1]:
            _, state = self.future.step(rows_of(actions, rows), state)
            states.append(state)
        # Rows of one table: the gradient of `gather` is not deterministic on a GPU.
        places = questions.ahead * len(first) + torch.arange(len(first), device=first.device)
        return rows_of(torch.cat(states), places)


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


def ask(following: Tensor, continues: Tensor, valid: Tensor | None, config: AuxiliaryConfig) -> Questions:
    """Random questions. Every call draws the rows to predict from, the steps ahead and the decoys."""
    num_rows, device = len(following), following.device
    path = [spread(num_rows, config.share, device)]
    for _ in range(config.steps):
        path.append(following[path[-1]])
    lengths = torch.stack([continues[rows] for rows in path[:-1]]).sum(0)
    chance = torch.rand(QUESTIONS, len(lengths), device=device)
    ahead = torch.minimum((chance * lengths).long(), lengths - 1).clamp(min=0)
    paths = torch.stack(path)
    answer = paths[1:].gather(0, ahead)
    others = torch.randint(max(num_rows - 1, 1), (*answer.shape, config.negatives), device=device)
    decoys = (answer[..., None] + 1 + others) % num_rows
    is_asked = (lengths > 0).expand_as(answer)
    is_fair = is_asked[..., None].expand_as(decoys)
    if valid is not None:
        is_fair = is_fair & valid[decoys]
    return Questions(paths, ahead, answer, decoys, is_asked, is_fair)


def spread(num_rows: int, share: float, device: torch.device) -> Tensor:
    """[P] different rows, a `share` of all: one at random in each of P equal stretches, which begin at a random row."""
    count = max(1, round(share * num_rows))
    stretch = num_rows // count
    places = torch.arange(count, device=device) * stretch + torch.randint(stretch, (count,), device=device)
    return (places + torch.randint(num_rows, (1,), device=device)) % num_rows


def rows_of(table: Tensor, rows: Tensor) -> Tensor:
    """[*rows, C]: the given rows of a table [M, C]."""
    return table.index_select(0, rows.flatten()).view(*rows.shape, -1)


def mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """[]: the mean where `mask` is set; 0 where it is set nowhere."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)
