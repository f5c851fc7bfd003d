"""Parts, copies and unions of batches. Copies and unions are of NumPy batches; they outlive the next `recv` and drop
`final_obs`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline.pool.protocol import Array, StepBatch

_COLUMNS = ("slots", "reward", "terminated", "truncated", "active", "lost", "step_seconds")


def part(batch: StepBatch, which: np.ndarray) -> StepBatch:
    """A copy of the rows where the mask `which` is set."""
    columns = {name: getattr(batch, name)[which] for name in _COLUMNS}
    return StepBatch(obs={name: rows[which] for name, rows in batch.obs.items()}, final_obs={}, **columns)


def rows_of(batch: StepBatch, rows: Array) -> StepBatch:
    """A copy of the rows with these numbers, of any pool's batch. Unlike a `part`, it has the `final_obs` of `batch`,
    which hold until the next `recv` only."""
    columns = {name: getattr(batch, name)[rows] for name in _COLUMNS}
    return StepBatch(obs={name: o[rows] for name, o in batch.obs.items()}, final_obs=batch.final_obs, **columns)


def copied(batch: StepBatch) -> StepBatch:
    kept = without_obs(batch)
    kept.obs = {name: rows.copy() for name, rows in batch.obs.items()}
    return kept


def without_obs(batch: StepBatch) -> StepBatch:
    """A copy of everything but the observations."""
    return StepBatch(obs={}, final_obs={}, **{name: getattr(batch, name).copy() for name in _COLUMNS})


def union(batches: Sequence[StepBatch]) -> StepBatch:
    """A copy of all rows, sorted by slot."""
    slots = np.concatenate([batch.slots for batch in batches])
    order = np.argsort(slots)
    columns = {name: np.concatenate([getattr(b, name) for b in batches])[order] for name in _COLUMNS}
    obs = {name: np.concatenate([b.obs[name] for b in batches])[order] for name in batches[0].obs}
    return StepBatch(obs=obs, final_obs={}, **columns)
