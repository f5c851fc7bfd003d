"""V-trace over whole columns of a batch: its inputs, and its result row by row. T steps, K columns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.experience.training_batch import TrainingBatch
from paceline.learner.hyperparameters import Scalars
from paceline.ops.vtrace import VTrace, vtrace


class Columns(NamedTuple):
    """The outcomes of the rows of whole columns, each [T, K]."""

    reward: Tensor
    next_value: Tensor
    """V of the next observation, where the column does not continue the episode."""
    continues: Tensor
    """bool: the next row of the column continues the episode."""
    valid: Tensor
    """bool: the row has an outcome and is trained on."""


def columns_of(batch: TrainingBatch, rows: Tensor) -> Columns:
    """The columns whose rows are `rows` [T, K]."""
    return Columns(batch.reward[rows], batch.next_value[rows], batch.continues[rows], batch.valid[rows])


def trace_columns(
    columns: Columns, log_ratio: Tensor, value: Tensor, scalars: Scalars, *, rho_in_advantage: bool
) -> VTrace:
    """V-trace, row by row [T * K], for the policy that has these log-ratios and values. `rho_in_advantage` multiplies
    the advantages by rho."""
    valid = columns.valid
    # Rows without an outcome may hold anything, NaN included.
    log_ratio, value = (torch.where(valid, x.view_as(valid), 0.0) for x in (log_ratio, value))
    following = torch.cat([value[1:], value[-1:]])
    found = vtrace(
        log_ratio,
        torch.where(valid, columns.reward, 0.0),
        value,
        torch.where(columns.continues, following, torch.where(valid, columns.next_value, 0.0)),
        columns.continues,
        discount=scalars.discount,
        trace_decay=scalars.trace_decay,
        max_rho=scalars.max_rho,
        max_c=scalars.max_c,
    )
    advantage = found.advantage * found.rho if rho_in_advantage else found.advantage
    return VTrace(found.targets.flatten(), advantage.flatten(), found.rho.flatten())
