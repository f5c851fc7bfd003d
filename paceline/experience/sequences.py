"""Rollout rows as mini-batches: shuffled rows, or packed sequences for recurrent policies.

Legend: B rows of a mini-batch, K sequences, D numbers of recurrent state.

Sequences start where the rollout starts, where an episode starts, and where a mini-batch cuts one in two: always with
the state that was stored before that very row, so no sequence ever continues from another episode's state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.experience.chunks import Chunks
from paceline.experience.rollout import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """Rows to train on together. For a recurrent policy they are in packed order, with where each sequence starts."""

    rows: Tensor
    """[B] int64 into the rollout's columns."""
    batch_sizes: Tensor | None = None
    """As in torch's PackedSequence, on the host; None for a policy without memory."""
    starts: Tensor | None = None
    """[K]: the first row of each sequence, longest sequence first."""
    turns: int | None = None
    """Set where `rows` are whole columns of a rollout, turn after turn, episodes and invalid rows mixed."""


def shuffled_rows(rollout: Rollout, count: int, generator: torch.Generator | None) -> Iterator[MiniBatch]:
    """All rows to train on in random order, in `count` mini-batches whose sizes differ by at most one."""
    rows = torch.nonzero(trained(rollout)).squeeze(1)
    order = torch.randperm(len(rows), generator=generator)  # on the host: the same order whatever the device
    for part in torch.tensor_split(rows[order.to(rows.device)], count):
        yield MiniBatch(rows=part)


def shuffled_sequences(rollout: Rollout, count: int, generator: torch.Generator | None) -> Iterator[MiniBatch]:
    """The rollout's sequences in random order, cut into `count` mini-batches whose sizes differ by at most one row."""
    rows, lengths = sequences(rollout)
    order = torch.randperm(len(lengths), generator=generator)
    offsets = torch.cumsum(lengths, 0) - lengths
    starts_at, lengths = offsets[order], lengths[order]
    total = int(lengths.sum())
    bounds = [total * part // count for part in range(count + 1)]
    ends = torch.cumsum(lengths, 0)
    begins = ends - lengths
    for low, high in itertools.pairwise(bounds):
        begin, end = begins.clamp(low, high), ends.clamp(low, high)
        part = end > begin
        yield pack(rows, (starts_at + begin - begins)[part], (end - begin)[part])


def shuffled_columns(rollout: Rollout, count: int, generator: torch.Generator | None) -> Iterator[MiniBatch]:
    """Whole columns (all turns of a slot) in random order, in `count` mini-batches of almost equal size."""
    columns = rollout.columns()
    order = torch.randperm(columns.shape[1], generator=generator).to(rollout.device)
    for chosen in torch.tensor_split(order, count):
        rows = columns[:, chosen]
        yield MiniBatch(rows=rows.flatten(), starts=rows[0], turns=len(rows))


def sequences(rollout: Rollout) -> tuple[Tensor, Tensor]:
    """Rows to train on, slot by slot and in order within, and the lengths of the sequences that they form (on the host).

    One look at the device per rollout: everything after it is arithmetic on the host.
    """
    assert not isinstance(rollout.book, Chunks)
    rows, joined = rollout.book.in_order()
    used = trained(rollout).cpu()[rows]
    start = rollout.episode_start[: rollout.num_rows].cpu()[rows] | ~joined
    start[1:] |= ~used[:-1]  # after a gap nothing is continued
    rows = rows[used]
    first = torch.nonzero(start[used]).squeeze(1)
    lengths = torch.diff(first, append=torch.tensor([len(rows)]))
    return rows, lengths


def pack(rows: Tensor, begins: Tensor, lengths: Tensor) -> MiniBatch:
    """Sequences `rows[begins[k] : begins[k] + lengths[k]]` in the order that packed recurrent layers want."""
    if len(lengths) == 0:
        return MiniBatch(rows=rows[:0], batch_sizes=lengths, starts=rows[:0])
    lengths, order = torch.sort(lengths, descending=True, stable=True)
    begins = begins[order]
    steps = torch.arange(int(lengths[0]))
    inside = steps[:, None] < lengths[None, :]  # [longest, K]: time-major, longest sequence first, is packed order
    at = (begins[None, :] + steps[:, None])[inside]
    return MiniBatch(rows=rows[at], batch_sizes=inside.sum(1), starts=rows[begins])


def trained(rollout: Rollout) -> Tensor:
    """[rows] bool: the rows to train on, those that fill a short rollout up included."""
    valid = rollout.valid[: rollout.num_rows]
    return valid if rollout.stale is None else valid | rollout.stale


def valid_rows(rollout: Rollout) -> Tensor:
    """The rows that this rollout has brought."""
    return torch.nonzero(rollout.valid[: rollout.num_rows]).squeeze(1)
