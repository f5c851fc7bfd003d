"""Auxiliary losses for a policy's encoder and memory: CPC|A, or one of the user's own (`own_losses.py`).

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
from paceline.learner.loss_rows import LossRows, mean_of, successors
from paceline.learner.own_losses import OwnAuxiliary, make_own_auxiliary
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig
from paceline.nets.cores import Core
from paceline.nets.ppo_policy import PPOPolicy

QUESTIONS = 2
"""Q: of the K steps after a row, so many are predicted. Neighbouring steps look nearly the same."""


def make_auxiliary(policy: PPOPolicy, config: AuxiliaryConfig, group: Group) -> CPCA | OwnAuxiliary | None:
    """The configured loss with the same weights on all ranks; None for none."""
    if config.kind == "none":
        return None
    loss = (_cpca if config.kind == "cpca" else make_own_auxiliary)(policy, config).to(group.device)
    synchronize(loss, group)
    return loss


def _cpca(policy: PPOPolicy, config: AuxiliaryConfig) -> CPCA:
    if not isinstance(policy, ActorCritic):
        raise UsageError(
            "auxiliary.kind cpca needs the encoders and the core of policy.kind chain; allowed: none, or "
            "package.module:Class for your own"
        )
    if not policy.is_recurrent:
        raise UsageError(
            "auxiliary.kind cpca predicts from a policy's memory, and this policy has none; allowed with it: "
            "policy.core.kind lstm, gru"
        )
    # Only images are compared if there are any: vectors may hold the previous action, which gives the answer away.
    num_features = policy.trunk.num_image_features or policy.trunk.out_features
    return CPCA(num_features, policy.core.out_features, policy.num_action_features, config)


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

    METRICS: tuple[str, ...] = ("cpca_loss", "cpca_accuracy")

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

    def forward(self, rows: LossRows) -> Prediction:
        assert rows.recall is not None
        following, continues = successors(rows.recall, rows.valid, len(rows.features))
        questions = ask(following, continues, rows.valid, self.config)
        future = self.from_future(self._predict(rows.belief.float(), rows.action_features, questions))
        seen = self.from_features(rows.features[:, : self._num_features].float())
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
