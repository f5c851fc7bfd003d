"""Losses and schedules as a user writes them, right and wrong."""

from __future__ import annotations

import os

import torch
from torch import nn


def small_values(rows):
    return rows.value**2


class SmallValues:
    def __call__(self, rows):
        return rows.value**2


class NextFeatures(nn.Module):
    """Predicts the next features from the belief and the action."""

    def __init__(self, num_features, num_belief, num_actions, config):
        super().__init__()
        self.predict = nn.Linear(num_belief + num_actions, num_features)

    def forward(self, rows):
        following, continues = rows.following()
        error = (self.predict(torch.cat([rows.belief, rows.action_features], 1)) - rows.features[following]) ** 2
        loss = torch.where(continues, error.mean(1), 0.0)
        return {"loss": rows.mean(loss), "pairs": continues.float().mean()}


class ValueAgain(nn.Module):
    """Needs no sequences, and gives the loss alone."""

    def __init__(self, num_features, num_belief, num_actions, config):
        super().__init__()
        self.value = nn.Linear(num_belief, 1)

    def forward(self, rows):
        return rows.mean((self.value(rows.belief).squeeze(-1) - rows.returns) ** 2)


def hidden_nan(rows):
    """NaN, with a finite gradient."""
    return rows.value + torch.nan


def nan_on_one_rank(rows):
    return rows.value + torch.nan if os.environ["RANK"] == "1" else rows.value


def broken(rows):
    return rows.value @ rows.features.t()[:1]


class NaNAuxiliary(ValueAgain):
    def forward(self, rows):
        return super().forward(rows) + torch.nan


def two_columns(rows):
    return rows.features


def without_gradient(rows):
    return rows.advantage


def a_number(rows):
    return 1.0


def two_arguments(rows, more):
    return rows.value


class NoCall:
    pass


class Weighty(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, rows):
        return self.scale * rows.value


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, rows):
        return rows.value


class NoForward(nn.Module):
    def __init__(self, *_):
        super().__init__()


class ManyLosses(ValueAgain):
    def forward(self, rows):
        return rows.value


class NoLoss(ValueAgain):
    def forward(self, rows):
        return {"error": super().forward(rows)}


class Detached(ValueAgain):
    def forward(self, rows):
        return super().forward(rows).detach()


def halving(progress):
    return 0.5 ** (10 * progress)


class WarmUp:
    """Rises for a tenth of the run."""

    def __call__(self, progress):
        return min(1.0, 10 * progress)


def negative(progress):
    return 0.5 - progress


def late_nan(progress):
    return float("nan") if 0.6 < progress < 0.9 else 1.0


def a_word(progress):
    return "fast"
