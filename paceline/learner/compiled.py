"""D4PG's update as one compiled function: forward pass, backward pass and Adam, in few passes over memory.

The update is traced once, with everything that it changes as arguments, and torch.compile compiles the trace.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from paceline.accel.activations import as_written
from paceline.distributed.reduce import clip_
from paceline.experience.replay import Drawn
from paceline.learner.finite import count_
from paceline.learner.flat import FlatNetwork, Trained

Algorithm = Callable[[Any, Drawn], tuple[Tensor, ...]]
"""Updates a named tuple of networks with a drawn batch; returns metrics."""


class CompiledUpdate:
    """`algorithm` on the weights and moments of `networks`, a named tuple of one rank. Batches must keep their size.

    The first call compiles, which takes a quarter of a minute. No other thread may use a network meanwhile: tracing
    patches `nn.Module` for all threads.
    """

    def __init__(self, algorithm: Algorithm, networks: Any) -> None:
        self._algorithm, self._networks = algorithm, networks
        self._compiled: Callable[..., tuple[Tensor, ...]] | None = None

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    @torch.no_grad()
    def __call__(self, drawn: Drawn) -> tuple[Tensor, ...]:
        # Looked up every time: loading an optimiser's state replaces its memory.
        arguments = [_memory(network) for network in self._networks], drawn.weight, drawn.rows
        if self._compiled is None:
            self._compiled = self._compile(drawn, *arguments)
        return self._compiled(*arguments)

    def _compile(self, drawn: Drawn, *arguments: Any) -> Callable[..., tuple[Tensor, ...]]:
        def update(memories: Sequence[Sequence[Tensor]], weight: Tensor, rows: dict[str, Tensor]) -> Any:
            networks = [_Traced(*pair) for pair in zip(self._networks, memories, strict=True)]
            with torch.enable_grad():
                return self._algorithm(
                    type(self._networks)(*networks), dataclasses.replace(drawn, rows=rows, weight=weight)
                )

        # Fake tensors have no values: tracing changes nothing and draws no random numbers.
        with as_written():
            trace = make_fx(update, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
        trace.graph.eliminate_dead_code()
        trace.recompile()
        return torch.compile(trace, dynamic=False, fullgraph=True, options={"cpp_wrapper": True})


def _memory(network: FlatNetwork) -> list[Tensor]:
    """Everything that an update of the network changes."""
    if not isinstance(network, Trained):
        return [network.values.detach()]
    return [network.values.detach(), *network.moments(), network.steps.counts]


class _Traced:
    """A network and its Adam, on the weights and moments given as arguments."""

    def __init__(self, network: FlatNetwork, memory: Sequence[Tensor]) -> None:
        self._network, (self._values, *self._state) = network, memory
        self._weights = self._values

    def __call__(self, *inputs: Any) -> Tensor:
        if isinstance(self._network, Trained):
            self._weights = self._values.detach().requires_grad_()
        return functional_call(self._network.module, self._network.views(self._weights), inputs)

    def descend(self, loss: Tensor) -> Tensor:
        assert isinstance(self._network, Trained)
        (gradient,) = torch.autograd.grad(loss, self._weights)
        with torch.no_grad():
            norm = clip_(gradient, self._network.max_grad_norm)
            *moments, counts = self._state
            finite = count_(counts, norm)
            adam_(self._values, gradient, moments, finite, **self._network.adam)
        return norm


def adam_(
    values: Tensor, gradient: Tensor, moments: Sequence[Tensor], finite: Tensor, *, rate: float, betas: Any, eps: float
) -> None:
    """One step of torch.optim.Adam, which compiles to one loop. Nothing changes unless `finite` [] is set.

    `moments` are the number of steps, and the running means of the gradient and of its square.
    """
    step, mean, square = moments
    steps = step + 1
    means = mean.lerp(gradient, 1 - betas[0])
    squares = (square * betas[1]).addcmul(gradient, gradient, value=1 - betas[1])
    scale = (squares.sqrt() / (1 - betas[1] ** steps).sqrt()).add(eps)
    moved = values - rate / (1 - betas[0] ** steps) * means / scale
    for old, new in ((step, steps), (mean, means), (square, squares), (values, moved)):
        old.copy_(torch.where(finite, new, old))
