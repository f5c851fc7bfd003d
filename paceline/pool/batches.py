"""Parts and unions of batches, and the actions for them.

Copies and unions are of NumPy batches. They outlive the next `recv` and drop `final_obs`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paceline.pool.kinds import AgentKind
from paceline.pool.protocol import Array, PoolSpec, StepBatch

_COLUMNS = ("slots", "reward", "terminated", "truncated", "active", "lost", "step_seconds", "episode")


def _columns(batch: StepBatch) -> list[tuple[str, Array]]:
    """By name: what the batch has for each row, but for observations."""
    return [(name, column) for name in _COLUMNS if (column := getattr(batch, name)) is not None]


def part(batch: StepBatch, which: np.ndarray) -> StepBatch:
    """A copy of the rows where the mask `which` is set."""
    columns = {name: column[which] for name, column in _columns(batch)}
    return StepBatch(obs={name: rows[which] for name, rows in batch.obs.items()}, final_obs={}, **columns)


def rows_of(batch: StepBatch, rows: Array) -> StepBatch:
    """A copy of the rows with these numbers, of any pool's batch. Unlike a `part`, it has the `final_obs` of `batch`,
    which hold until the next `recv` only."""
    columns = {name: column[rows] for name, column in _columns(batch)}
    return StepBatch(obs={name: o[rows] for name, o in batch.obs.items()}, final_obs=batch.final_obs, **columns)


def span_of(batch: StepBatch, begin: int, end: int) -> StepBatch:
    """The rows from `begin` to `end`, without a copy."""
    columns = {name: column[begin:end] for name, column in _columns(batch)}
    obs = {name: rows[begin:end] for name, rows in batch.obs.items()}
    return StepBatch(obs=obs, final_obs=batch.final_obs, **columns)


def copied(batch: StepBatch) -> StepBatch:
    kept = without_obs(batch)
    kept.obs = {name: rows.copy() for name, rows in batch.obs.items()}
    return kept


def without_obs(batch: StepBatch) -> StepBatch:
    """A copy of everything but the observations."""
    return StepBatch(obs={}, final_obs={}, **{name: column.copy() for name, column in _columns(batch)})


def inactive(slots: np.ndarray) -> StepBatch:
    """A batch of inactive slots without observations."""
    no, zero = np.zeros(len(slots), bool), np.zeros(len(slots), np.float32)
    return StepBatch(
        slots=slots,
        obs={},
        reward=zero,
        terminated=no,
        truncated=no,
        final_obs={},
        active=no,
        lost=no,
        step_seconds=zero,
    )


def union(batches: Sequence[StepBatch]) -> StepBatch:
    """A copy of all rows, sorted by slot."""
    slots = np.concatenate([batch.slots for batch in batches])
    order = np.argsort(slots)
    names = [name for name in _COLUMNS if all(getattr(batch, name) is not None for batch in batches)]
    columns = {name: np.concatenate([getattr(b, name) for b in batches])[order] for name in names}
    obs = {name: np.concatenate([b.obs[name] for b in batches])[order] for name in batches[0].obs}
    return StepBatch(obs=obs, final_obs={}, **columns)


def merge_actions(
    spec: PoolSpec, num_rows: int, parts: Sequence[tuple[AgentKind, np.ndarray, Mapping[str, np.ndarray]]]
) -> dict[str, np.ndarray]:
    """The actions of a batch of `num_rows` rows, as `send` takes them.

    Every part has a kind, an index of rows of that kind (a mask or numbers), and their actions under the kind's own
    names. Columns of other kinds are zero in these rows; the pool ignores them.
    """
    merged = {leaf.name: np.zeros((num_rows, *leaf.shape), leaf.dtype) for leaf in spec.actions}
    for kind, rows, actions in parts:
        for name, column in kind.action_columns.items():
            merged[column][rows] = actions[name]
    return merged
