"""An off-policy update as one compiled function: forward, backward and Adam in few passes over memory, without Python.

The update is traced once, with everything that it reads or changes as an argument, and torch.compile compiles the
trace.
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
from paceline.learner.flat import FlatNetwork, TrainedNetwork

Algorithm = Callable[[Any, Drawn], tuple[Tensor, ...]]
"""Takes a named tuple of networks and a drawn batch, changes the networks, and returns metrics."""


class CompiledUpdate:
    """`algorithm` over `networks`, a named tuple. For a group of one rank, and batches of one size.

    The first call compiles. That takes a quarter of a minute, and no other thread may use a network meanwhile: tracing
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
        # Looked up every time: an optimiser that loads a checkpoint gets new memory.
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

        # Fake tensors: tracing changes nothing and draws no random numbers.
        with as_written():
            trace = make_fx(update, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
        trace.graph.eliminate_dead_code()
        trace.recompile()
        return torch.compile(trace, dynamic=False, fullgraph=True, options={"cpp_wrapper": True})


def _memory(network: FlatNetwork) -> list[Tensor]:
    """Every tensor that an update of a network reads or changes."""
    if not isinstance(network, TrainedNetwork):
        return [network.values.detach()]
    rate = torch.as_tensor(network.adam["rate"], dtype=network.values.dtype)
    limit = [network.max_grad_norm] if network.max_grad_norm is not None else []
    return [network.values.detach(), *network.moments(), network.steps.counts, rate, *limit]


class _Traced:
    """A network, with Adam written out, over the memory that it is given."""

    def __init__(self, network: FlatNetwork, memory: Sequence[Tensor]) -> None:
        self._network, (self._values, *self._state) = network, memory
        self._weights: Tensor | None = None
        """The weights since the last step, as a leaf of the gradient."""

    def __call__(self, *inputs: Any) -> Tensor:
        return functional_call(self._network.module, self._views(), inputs)

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        own = {name.removeprefix("encoder."): v for name, v in self._views().items() if name.startswith("encoder.")}
        return functional_call(self._network.module.get_submodule("encoder"), own, (obs,))

    def _views(self) -> dict[str, Tensor]:
        if self._weights is None:
            is_trained = isinstance(self._network, TrainedNetwork)
            self._weights = self._values.detach().requires_grad_() if is_trained else self._values
        return self._network.views(self._weights)

    def descend(self, loss: Tensor) -> Tensor:
        assert isinstance(self._network, TrainedNetwork) and self._weights is not None
        (gradient,) = torch.autograd.grad(loss, self._weights)
        self._weights = None
        with torch.no_grad():
            step, mean, square, counts, rate, *limit = self._state
            norm = clip_(gradient, limit[0] if limit else None)
            settings = self._network.adam | {"rate": rate}
            adam_(self._values, gradient, step, mean, square, count_(counts, norm), **settings)
        return norm


def adam_(
    values: Tensor,
    gradient: Tensor,
    step: Tensor,
    mean: Tensor,
    square: Tensor,
    finite: Tensor,
    *,
    rate: Tensor,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
) -> None:
    """One step of torch.optim.AdamW, which compiles to a single loop. Changes nothing unless `finite` [] is set."""
    steps = step + 1
    means = mean.lerp(gradient, 1 - betas[0])
    squares = (square * betas[1]).addcmul(gradient, gradient, value=1 - betas[1])
    scale = (squares.sqrt() / (1 - betas[1] ** steps).sqrt()).add(eps)
    kept = values * (1 - rate * weight_decay) if weight_decay else values
    moved = kept - (1 - betas[0] ** steps).reciprocal() * rate * means / scale
    for old, new in ((step, steps), (mean, means), (square, squares), (values, moved)):
        old.copy_(torch.where(finite, new, old))
