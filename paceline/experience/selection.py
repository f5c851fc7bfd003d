"""`Selection`: which rows of a buffer one update sees, and how they form streams. All of it is on the host.

Legend: L rows of the longest stream, N streams, R rows of the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Rows = slice | Tensor
"""An index into the columns of a buffer; a slice where the rows are consecutive."""


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Rows as one column per stream, oldest first. A stream is one slot's rows of a rollout, or one chunk of them."""

    rows: np.ndarray
    """[L, N] int64."""
    slots: np.ndarray
    """[N]: the slot of each stream."""
    num_rows: int
    """All rows of the selection are among the first `num_rows` of the buffer."""
    present: np.ndarray | None = None
    """[L, N] bool: where there is a row. None: everywhere, so that all streams are equally long."""
    completed: np.ndarray | None = None
    """[L, N] bool: rows that have an outcome. None: all rows that are present."""
    following: np.ndarray | None = None
    """[N]: the row after each stream, where the buffer holds it."""
    weights: np.ndarray | None = None
    """[N]: importance weight of each stream. None: all weigh the same."""
    older: tuple[np.ndarray, np.ndarray] | None = None
    """Rows of the previous rollout that are trained on once more, stream after stream, and whether each directly
    follows the one before it. They are counted nowhere."""
    used: np.ndarray | None = None
    """[L, N] bool: rows of the policy that learns. The others are other policies' rows, or were never written. None:
    all rows are used."""

    @property
    def num_streams(self) -> int:
        return self.rows.shape[1]

    @property
    def steps(self) -> int | None:
        """Rows of every stream; None where streams differ in length."""
        return len(self.rows) if self.present is None else None

    @property
    def has_outcome(self) -> np.ndarray:
        """[L, N] bool: rows of the policy that learns, with an outcome."""
        mask = self.completed if self.completed is not None else self.present
        if mask is None:
            return np.ones(self.rows.shape, bool) if self.used is None else self.used
        return mask if self.used is None else mask & self.used

    def own_rows(self) -> np.ndarray:
        """All rows of the policy that learns, in no particular order."""
        mask = self.present if self.used is None else self.used
        if self.used is not None and self.present is not None:
            mask = self.used & self.present
        return self.rows.reshape(-1) if mask is None else self.rows[mask]

    def in_turns(self) -> list[tuple[Tensor, Rows]]:
        """Time-major order: for each step, the slots that have a completed row, and those rows.

        A slot may have several streams. The older one comes first.
        """
        order, has_outcome = np.zeros(self.num_streams, np.int64), self.has_outcome
        if len(np.unique(self.slots)) < self.num_streams:
            order = np.array([np.count_nonzero(self.slots[:n] == slot) for n, slot in enumerate(self.slots)])
        turns = []
        for number in range(int(order.max(initial=-1)) + 1):
            for step in range(len(self.rows)):
                streams = np.flatnonzero((order == number) & has_outcome[step])
                if len(streams):
                    turns.append((torch.from_numpy(self.slots[streams]), as_rows(self.rows[step, streams])))
        return turns

    def in_order(self) -> tuple[Tensor, Tensor]:
        """All rows, stream after stream, and whether each directly follows the one before it."""
        joined = np.ones(self.rows.T.shape, bool)
        joined[:, :1] = False
        there = slice(None) if self.present is None else self.present.T
        parts = [(self.rows.T[there].reshape(-1), joined[there].reshape(-1))]
        if self.older is not None:
            parts.insert(0, self.older)
        ordered, follows = (np.concatenate(columns) for columns in zip(*parts, strict=True))
        return torch.from_numpy(ordered), torch.from_numpy(follows)


def as_rows(rows: np.ndarray) -> Rows:
    """A slice, if the rows are consecutive."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (len(rows) < 3 or (np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[0]) + len(rows))
    return torch.from_numpy(rows)
