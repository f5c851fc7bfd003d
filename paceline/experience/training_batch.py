"""`TrainingBatch`: what one update sees of a buffer. Rows, the streams that they form, masks, and targets.

Legend: C truncated rows, L rows of the longest stream, N streams, R rows of the buffer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import Truncations
from paceline.experience.selection import Rows, Selection
from paceline.ops.gae import gae


class TrainingBatch:
    """A view of a buffer, for one update after another: `select` says which rows the next one sees.

    Masks and targets are the batch's own columns. Their memory stays where it is, because recorded updates read it.
    Collection may continue in other rows of the buffer meanwhile.
    """

    def __init__(self, buffer: RolloutBuffer, *, weighted: bool = False) -> None:
        """With `weighted`, every row has an importance weight."""
        self._buffer, self.device = buffer, buffer.device
        rows, device = buffer.capacity, buffer.device
        self.next_value, self.advantage, self.returns = (
            torch.full((rows,), torch.nan, device=device) for _ in range(3)
        )
        self.continues, self.valid = (torch.zeros(rows, dtype=torch.bool, device=device) for _ in range(2))
        self.weight: Tensor | None = torch.ones(rows, device=device) if weighted else None
        """[R]: importance weights; None where all rows weigh the same."""
        self.stale: Tensor | None = None
        """[R] bool: rows of the previous rollout that are trained on again and not counted. None: there are none."""
        self.selection: Selection
        self.truncations: Truncations | None = None
        self._rows: Tensor
        """[L, N], on the device."""
        self._present: Tensor | None = None

    # Columns of the buffer.
    obs = property(lambda self: self._buffer.obs)
    actions = property(lambda self: self._buffer.actions)
    state = property(lambda self: self._buffer.state)
    log_prob = property(lambda self: self._buffer.log_prob)
    value = property(lambda self: self._buffer.value)
    reward = property(lambda self: self._buffer.reward)
    version = property(lambda self: self._buffer.version)
    episode_start = property(lambda self: self._buffer.episode_start)
    terminated = property(lambda self: self._buffer.terminated)
    truncated = property(lambda self: self._buffer.truncated)

    def select(self, selection: Selection, truncations: Truncations | None) -> None:
        """Make `selection` the content of this batch. `truncations` are those in its rows."""
        self.selection, self.truncations = selection, truncations
        self._rows = torch.from_numpy(selection.rows).to(self.device)
        present = selection.present
        self._present = None if present is None else torch.from_numpy(present).to(self.device)
        complete = self._rows
        if present is not None or selection.used is not None:
            complete = self._rows[torch.from_numpy(selection.has_outcome).to(self.device)]
        self.valid.zero_()
        self.valid[complete] = self._buffer.valid[complete]
        self.stale = None
        if selection.older is not None:
            self.stale = torch.zeros(self.num_rows, dtype=torch.bool, device=self.device)
            self.stale[torch.from_numpy(selection.older[0]).to(self.device)] = True
        if self.weight is not None and selection.weights is not None:
            weights = torch.from_numpy(selection.weights).float().to(self.device).expand(self._rows.shape)
            self._write(self.weight, weights)

    @property
    def num_rows(self) -> int:
        """Upper bound of the row indices of this batch. `valid` is the mask of its rows."""
        return self.selection.num_rows

    @property
    def num_steps(self) -> int:
        """Steps that the batch has. Waits for the device."""
        return int(self.valid[: self.num_rows].sum())

    @property
    def num_streams(self) -> int:
        return self.selection.num_streams

    @property
    def steps(self) -> int | None:
        """Rows of every stream; None where streams differ in length."""
        return self.selection.steps

    def columns(self) -> Tensor:
        """[T, N]: the rows of every stream. Only where all streams are equally long."""
        if self._present is not None:
            raise ValueError("the streams of this batch differ in length: they are no columns")
        return self._rows

    def trained(self) -> Tensor:
        """[num_rows] bool: the rows to train on, stale ones included."""
        valid = self.valid[: self.num_rows]
        return valid if self.stale is None else valid | self.stale

    def valid_rows(self) -> Tensor:
        """The rows that count."""
        return torch.nonzero(self.valid[: self.num_rows]).squeeze(1)

    def in_turns(self) -> list[tuple[Tensor, Rows]]:
        """`Selection.in_turns`, on the device."""
        turns = self.selection.in_turns()
        return [(s.to(self.device), r if isinstance(r, slice) else r.to(self.device)) for s, r in turns]

    def drop_older(self, version: Tensor) -> Tensor:
        """Leave out rows that weights before `version` decided. Returns how many, on the device."""
        old = self.version < version
        dropped = (self.valid & old).sum()
        self.valid &= ~old
        if self.stale is not None:
            dropped = dropped + (self.stale & old[: self.num_rows]).sum()
            self.stale &= ~old[: self.num_rows]
        return dropped

    def set_next_values(self, last_value: Tensor, truncated_value: Tensor | None) -> None:
        """Bootstrap values: for every row V of what followed it (`next_value`), and whether the next row of its stream
        continues its episode (`continues`).

        `last_value` [N] is V of the observation after each stream's last row, where that row is complete.
        `truncated_value` [C] has the values of `truncations`.
        """
        value, terminated, truncated = (self._read(c) for c in (self.value, self.terminated, self.truncated))
        valid = self._read(self.valid)
        following = torch.cat([value[1:], last_value[None]])
        if self._present is not None:
            valid = valid & self._present
            goes_on = torch.cat([self._present[1:], torch.zeros_like(self._present[:1])])
            following = torch.where(goes_on, following, last_value[None])
        self._write(self.next_value, following)
        if self.truncations is not None:
            assert truncated_value is not None
            self.next_value[self.truncations.rows] = truncated_value
        next_value = torch.where(terminated, 0.0, self._read(self.next_value))
        # If the next row is lost or in flight, its stored value bootstraps, as at the end of a rollout.
        follows = torch.cat([valid[1:], torch.zeros_like(valid[:1])])
        # Where there is no outcome, memory may hold NaN, and 0 * NaN is NaN: it is replaced, not multiplied.
        self._write(self.next_value, torch.where(valid, next_value, 0.0))
        self._write(self.continues, follows & valid & ~terminated & ~truncated)

    def set_advantages(self, discount: float, trace_decay: float) -> None:
        """Advantages and value targets by generalized advantage estimation, after `set_next_values`."""
        valid = self._read(self.valid)
        if self._present is not None:
            valid = valid & self._present
        reward, value = (torch.where(valid, self._read(column), 0.0) for column in (self.reward, self.value))
        next_value = torch.where(valid, self._read(self.next_value), 0.0)
        continues = self._read(self.continues) & valid
        advantage = gae(reward, value, next_value, continues, discount=discount, trace_decay=trace_decay)
        advantage = torch.where(valid, advantage, 0.0)
        self._write(self.advantage, advantage)
        self._write(self.returns, advantage + value)

    def _read(self, column: Tensor) -> Tensor:
        """[R] as [L, N]. Where rows are the first of the buffer in order, nothing is copied."""
        steps, streams = self._rows.shape
        if self._is_dense:
            return column[: steps * streams].view(steps, streams)
        return column[self._rows]

    def _write(self, column: Tensor, values: Tensor) -> None:
        """[L, N] into [R]."""
        if self._is_dense:
            column[: values.numel()] = values.reshape(-1)
        elif self._present is None:
            column[self._rows] = values
        else:
            column[self._rows[self._present]] = values[self._present]

    @property
    def _is_dense(self) -> bool:
        """Whether the rows of the selection are simply the first rows of the buffer."""
        return self._present is None and self.num_rows == self._rows.numel()
