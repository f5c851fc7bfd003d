"""Gradient steps as recorded CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.experience.sequences import MiniBatch
from paceline.experience.training_batch import TrainingBatch

MOST_GRAPHS = 8
"""Only the first so many shapes of mini-batches are recorded. Mini-batches of other shapes run eagerly."""

Backward = Callable[[TrainingBatch, MiniBatch], Tensor]
"""Computes gradients, and returns the sums of the metrics."""
Apply = Callable[[Tensor], Tensor]
"""Moves the weights by the gradients, and completes the sums."""


class StepGraph:
    """A gradient step on mini-batches of one shape, recorded in two halves. Ranks average gradients between them."""

    def __init__(
        self, backward: Backward, apply: Apply, num_sums: int, batch: TrainingBatch, minibatch: MiniBatch
    ) -> None:
        starts = minibatch.starts.to(batch.device, copy=True) if minibatch.starts is not None else None
        self._minibatch = replace(minibatch, rows=minibatch.rows.to(batch.device, copy=True), starts=starts)
        self._sums = torch.zeros(num_sums, device=batch.device)
        self._backward = CudaGraph(lambda: self._sums.copy_(backward(batch, self._minibatch)))
        self._apply = CudaGraph(lambda: apply(self._sums))

    def backward(self, minibatch: MiniBatch) -> Tensor:
        self._minibatch.rows.copy_(minibatch.rows, non_blocking=True)
        if self._minibatch.starts is not None and minibatch.starts is not None:
            self._minibatch.starts.copy_(minibatch.starts, non_blocking=True)
        return self._backward.run()

    def apply(self) -> Tensor:
        return self._apply.run()


class StepGraphs:
    """The recorded steps of a learner, by batch and shape."""

    def __init__(self, backward: Backward, apply: Apply, num_sums: int, *, recorded: bool) -> None:
        self._backward, self._apply, self._num_sums, self._recorded = backward, apply, num_sums, recorded
        self._graphs: dict[tuple[int, ...], StepGraph] = {}

    def __len__(self) -> int:
        return len(self._graphs)

    def find(self, batch: TrainingBatch, minibatch: MiniBatch) -> StepGraph | None:
        """The recording for this batch and shape; None where the step must run eagerly."""
        if (
            not self._recorded
            or minibatch.batch_sizes is not None
            or batch.weight is not None
            or not len(minibatch.rows)
        ):
            return None
        key = (id(batch), len(minibatch.rows), minibatch.steps or 0)
        if key not in self._graphs and len(self._graphs) < MOST_GRAPHS:
            self._graphs[key] = StepGraph(self._backward, self._apply, self._num_sums, batch, minibatch)
        return self._graphs.get(key)

    def clear(self) -> None:
        """Forget all recordings: the memory or a number that they use is no longer the current one."""
        self._graphs.clear()
