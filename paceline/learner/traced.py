"""V-trace over whole columns of a rollout: what a learner gives it, and what it takes from it. T turns, K columns."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from paceline.experience.rollout import Rollout
from paceline.learner.config import PPOConfig
from paceline.ops.vtrace import VTrace, vtrace


class Course(NamedTuple):
    """What followed the rows of whole columns: what V-trace needs to know."""

    reward: Tensor
    """[T, K]."""
    next_value: Tensor
    """[T, K]: V of what followed, where a column does not say it itself."""
    continues: Tensor
    """[T, K] bool: the next row of the column goes on with the episode."""
    valid: Tensor
    """[T, K] bool: rows that have an outcome and count."""


def course_of(rollout: Rollout, rows: Tensor) -> Course:
    """Of columns whose rows are `rows` [T, K]."""
    return Course(rollout.reward[rows], rollout.next_value[rows], rollout.continues[rows], rollout.valid[rows])


def trace(course: Course, log_ratio: Tensor, value: Tensor, config: PPOConfig) -> VTrace:
    """V-trace of columns, row by row [T * K], under the policy that has these log-ratios and values; rho in the advantages if that is
    asked for."""
    valid = course.valid
    # Where there is no outcome, memory may hold anything.
    log_ratio, value = (torch.where(valid, column.view_as(valid), 0.0) for column in (log_ratio, value))
    after = torch.cat([value[1:], value[-1:]])
    found = vtrace(
        log_ratio,
        torch.where(valid, course.reward, 0.0),
        value,
        torch.where(course.continues, after, torch.where(valid, course.next_value, 0.0)),
        course.continues,
        discount=config.discount,
        trace_decay=config.trace_decay,
        max_rho=config.max_rho,
        max_c=config.max_c,
    )
    advantage = found.advantage * found.rho if config.rho_in_advantage else found.advantage
    return VTrace(found.targets.flatten(), advantage.flatten(), found.rho.flatten())
