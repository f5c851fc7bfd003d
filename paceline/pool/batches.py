"""Batches that outlive the next `recv`: copies, parts and unions. Of pools whose simulators run on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.pool.protocol import StepBatch

_COLUMNS = ("slots", "reward", "terminated", "truncated", "active", "lost", "step_seconds")


def part(batch: StepBatch, which: np.ndarray) -> StepBatch:
    """A copy of the rows that the mask `which` names. What `final_obs` held is not kept."""
    columns = {name: getattr(batch, name)[which] for name in _COLUMNS}
    return StepBatch(obs={name: rows[which] for name, rows in batch.obs.items()}, final_obs={}, **columns)


def copied(batch: StepBatch) -> StepBatch:
    """A copy of all rows. What `final_obs` held is not kept."""
    kept = without_obs(batch)
    kept.obs = {name: rows.copy() for name, rows in batch.obs.items()}
    return kept


def without_obs(batch: StepBatch) -> StepBatch:
    """A copy of all that is known of the rows but what they show."""
    return StepBatch(obs={}, final_obs={}, **{name: getattr(batch, name).copy() for name in _COLUMNS})


def union(batches: Sequence[StepBatch]) -> StepBatch:
    """A copy of all rows, by slot. What `final_obs` held is not kept."""
    slots = np.concatenate([batch.slots for batch in batches])
    order = np.argsort(slots)
    columns = {name: np.concatenate([getattr(b, name) for b in batches])[order] for name in _COLUMNS}
    obs = {name: np.concatenate([b.obs[name] for b in batches])[order] for name in batches[0].obs}
    return StepBatch(obs=obs, final_obs={}, **columns)
