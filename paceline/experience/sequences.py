"""Rows of a training batch as mini-batches: shuffled rows, packed sequences or whole columns.

Legend: B rows of a mini-batch, K sequences.

A sequence starts where its stream starts, where an episode starts, and where a mini-batch cuts it in two. It starts
with the state that was stored before that row, so no sequence continues from the state of another episode.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.experience.training_batch import TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MiniBatch:
    """Rows to train on together. For a recurrent policy they are in packed order, with the start of each sequence."""

    rows: Tensor
    """[B] int64 into the columns of the buffer."""
    batch_sizes: Tensor | None = None
    """As in torch's PackedSequence, on the host; None for a policy without memory."""
    starts: Tensor | None = None
    """[K]: the first row of each sequence, longest sequence first."""
    steps: int | None = None
    """Set where `rows` are whole columns, step after step, with episodes and invalid rows mixed."""


def shuffled_rows(batch: TrainingBatch, count: int, generator: torch.Generator | None) -> Iterator[MiniBatch]:
    """All rows to train on in random order, in `count` mini-batches whose sizes differ by at most one."""
    rows = torch.nonzero(batch.trained()).squeeze(1)
    order = torch.randperm(len(rows), generator=generator)  # on the host: the same order on every device
    for part in torch.tensor_split(rows[order.to(rows.device)], count):
        yield MiniBatch(rows=part)


def shuffled_sequences(batch: TrainingBatch, count: int, generator: torch.Generator | None) -> Iterator[MiniBatch]:
    """The batch's sequences in random order, cut into `count` mini-batches whose sizes differ by at most one row."""
    rows, lengths = sequences(batch)
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


def shuffled_columns(batch: TrainingBatch, count: int, generator: torch.Generator | None) -> Iterator[MiniBatch]:
    """Whole columns (all steps of a stream) in random order, in `count` mini-batches of almost equal size."""
    columns = batch.columns()
    order = torch.randperm(columns.shape[1], generator=generator).to(batch.device)
    for chosen in torch.tensor_split(order, count):
        rows = columns[:, chosen]
        yield MiniBatch(rows=rows.flatten(), starts=rows[0], steps=len(rows))


def sequences(batch: TrainingBatch) -> tuple[Tensor, Tensor]:
    """Rows to train on, stream after stream, and the lengths of the sequences that they form. Both are on the host.

    It waits for the device once. Everything after it is arithmetic on the host.
    """
    rows, joined = batch.selection.in_order()
    used = batch.trained().cpu()[rows]
    start = batch.episode_start[: batch.num_rows].cpu()[rows] | ~joined
    start[1:] |= ~used[:-1]  # no sequence continues after a gap
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
