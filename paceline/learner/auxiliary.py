"""Auxiliary losses: what a policy's encoder and memory are taught besides acting. So far there is one, CPC|A.

Action-conditional contrastive predictive coding (Guo et al., "Neural Predictive Belief Representations", 2018): from
what the policy remembers at a step and from the actions that it took after it, tell the observation that followed some
steps later from observations of other rows. VER trains its navigation agents with it.

Legend: M rows of a mini-batch, P of them that are predicted from, K steps ahead, Q questions for each, N decoys, F
features, H hidden units, A numbers of an action.

Everything has a shape that follows from the mini-batch's, and nothing waits for the device: it can be recorded.
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
"""Steps ahead, of the K, that are asked about from each row: neighbouring ones have nearly the same answer."""


def make_auxiliary(policy: ActorCritic, config: AuxiliaryConfig, group: Group) -> CPCA | None:
    """The loss that `config` asks for, the same on all ranks; None for none."""
    if config.kind == "none":
        return None
    if not policy.is_recurrent:
        raise UsageError(
            "auxiliary.kind cpca predicts from a policy's memory, and this one has none; allowed with it: "
            "policy.core.kind lstm, gru"
        )
    # Where there are images they alone are told apart: vectors may hold the previous action, which would give it away.
    num_features = policy.trunk.num_image_features or policy.trunk.out_features
    loss = CPCA(num_features, policy.core.out_features, policy.num_action_features, config).to(group.device)
    synchronize(loss, group)
    return loss


class Questions(NamedTuple):
    """What is asked about one mini-batch. Rows are numbers in [0, M)."""

    path: Tensor
    """[K + 1, P] rows: one that is predicted from, and those that follow it; beyond its sequence's end, the last."""
    ahead: Tensor
    """[Q, P]: after which of those steps the observation is asked for, 0 for the first."""
    answer: Tensor
    """[Q, P] rows: whose observation that is."""
    decoys: Tensor
    """[Q, P, N] rows, none of them the answer."""
    is_asked: Tensor
    """[Q, P] bool: anything follows at all."""
    is_fair: Tensor
    """[Q, P, N] bool: and the decoy is a row that counts."""


class Judgement(NamedTuple):
    """How the questions were answered."""

    loss: Tensor
    """[]: with gradient."""
    accuracy: Tensor
    """[]: of true and false observations, half each, the share that was told right: 0.5 is chance."""


class CPCA(nn.Module):
    """A GRU goes from the belief at a row through the following actions; a classifier is given its state and one
    encoded observation, and says whether that is the one which followed."""

    METRICS = ("cpca_loss", "cpca_accuracy")

    def __init__(self, num_features: int, num_belief: int, num_action: int, config: AuxiliaryConfig) -> None:
        super().__init__()
        self.config, self._num_features = config, num_features
        self.start = nn.Linear(num_belief, config.hidden)
        self.future = Core(num_action, CoreConfig(kind="gru", hidden=config.hidden))
        # One layer over both inputs side by side, as two: a row's observation is multiplied once, not for every
        # question that it appears in.
        self.from_future = nn.Linear(config.hidden, config.hidden)
        self.from_features = nn.Linear(num_features, config.hidden, bias=False)
        self.classifier = nn.Sequential(
            nn.ReLU(), nn.Linear(config.hidden, config.hidden), nn.ReLU(), nn.Linear(config.hidden, 1)
        )
        for values in self.parameters():
            (nn.init.orthogonal_ if values.dim() > 1 else nn.init.zeros_)(values)

    def forward(
        self, features: Tensor, belief: Tensor, actions: Tensor, recall: Recall, valid: Tensor | None
    ) -> Judgement:
        """Judge a mini-batch: encoded observations [M, F], the core's outputs [M, D] and actions [M, A] of rows that
        form sequences as `recall` says; rows that `valid` [M] does not mark are not used."""
        questions = ask(*successors(recall, valid, len(features)), valid, self.config)
        future = self.from_future(self._predict(belief.float(), actions, questions))
        seen = self.from_features(features[:, : self._num_features].float())
        candidates = torch.cat([questions.answer[..., None], questions.decoys], dim=2)
        logits = self.classifier(future[:, :, None] + rows_of(seen, candidates)).squeeze(-1)
        true, false = logits[..., 0], logits[..., 1:]
        loss = mean_of(F.softplus(-true), questions.is_asked) + mean_of(F.softplus(false), questions.is_fair)
        right = mean_of((true > 0).float(), questions.is_asked) + mean_of((false < 0).float(), questions.is_fair)
        return Judgement(loss, right / 2)

    def _predict(self, belief: Tensor, actions: Tensor, questions: Questions) -> Tensor:
        """[Q, P, H]: the GRU's state after the actions that lead to each answer."""
        path = questions.path.unbind()
        first = path[0]
        state, states = torch.tanh(self.start(rows_of(belief, first))), []
        for rows in path[:-1]:
            _, state = self.future.step(rows_of(actions, rows), state)
            states.append(state)
        # As rows of one table: a gradient through gather would not be deterministic on a GPU.
        places = questions.ahead * len(first) + torch.arange(len(first), device=first.device)
        return rows_of(torch.cat(states), places)


def successors(recall: Recall, valid: Tensor | None, num_rows: int) -> tuple[Tensor, Tensor]:
    """[M] rows: what follows each one in its sequence, itself for the last; [M] bool: whether anything does."""
    if recall.batch_sizes is not None:  # on the host, as they are
        sizes, rows = recall.batch_sizes, torch.arange(num_rows)
        places = rows - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
        # Packed order: a sequence has the same place in every block, for as long as it lasts.
        continues = places < F.pad(sizes[1:], (0, 1)).repeat_interleave(sizes)
        following = torch.where(continues, rows + sizes.repeat_interleave(sizes), rows)
        return following.to(recall.state.device), continues.to(recall.state.device)
    assert recall.episode_start is not None and valid is not None
    start, valid = recall.episode_start, valid.view_as(recall.episode_start)
    continues = F.pad(valid[:-1] & valid[1:] & ~start[1:], (0, 0, 0, 1)).flatten()
    rows = torch.arange(num_rows, device=start.device)
    return torch.where(continues, rows + start.shape[1], rows), continues


def ask(following: Tensor, continues: Tensor, valid: Tensor | None, config: AuxiliaryConfig) -> Questions:
    """Random questions about sequences: starts, steps ahead and decoys are drawn anew at every call."""
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
    """[P] different rows, a `share` of all, one at random in each of P equal stretches that begin anywhere."""
    count = max(1, round(share * num_rows))
    stretch = num_rows // count
    places = torch.arange(count, device=device) * stretch + torch.randint(stretch, (count,), device=device)
    return (places + torch.randint(num_rows, (1,), device=device)) % num_rows


def rows_of(table: Tensor, rows: Tensor) -> Tensor:
    """[*rows, C]: rows of a table [M, C], in any shape."""
    return table.index_select(0, rows.flatten()).view(*rows.shape, -1)


def mean_of(values: Tensor, mask: Tensor) -> Tensor:
    """[]: the mean where `mask` is set; 0 if it is nowhere."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)
