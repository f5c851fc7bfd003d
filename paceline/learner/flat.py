"""All weights of a network in one tensor: an optimiser step or a copy to a target takes a few operations, whatever the
number of layers."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.distributed.reduce import FlatGradients
from paceline.distributed.runtime import Group
from paceline.learner.config import OnNonFinite
from paceline.learner.finite import FiniteSteps
from paceline.learner.optimizer import make_adam
from paceline.stop import Stop


class FlatNetwork:
    """A module whose parameters become views of `values`. Frozen parameters stay where they are, and so do those of
    `borrowed`, a module inside that another network trains.

    The parameters get new memory: take references to them only afterwards.
    """

    def __init__(self, module: nn.Module, borrowed: nn.Module | None = None) -> None:
        self.module = module
        others = set(map(id, borrowed.parameters())) if borrowed is not None else set()
        named = module.named_parameters()
        self._trained = {name: values for name, values in named if values.requires_grad and id(values) not in others}
        parameters = self._trained.values()
        self.values = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, self.values.detach().split(sizes), strict=True):
            parameter.data = part.view_as(parameter)

    def __call__(self, *inputs: Any) -> Tensor:
        return self.module(*inputs)

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """The output of the module's own `encoder`."""
        return self.module.get_submodule("encoder")(obs)

    def views(self, values: Tensor) -> dict[str, Tensor]:
        """Another tensor with the layout of `self.values`, as named parameters."""
        shapes = {name: parameter.shape for name, parameter in self._trained.items()}
        parts = values.split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}

    @torch.no_grad()
    def follow(self, other: FlatNetwork, share: float) -> None:
        """Move towards the weights of another network by `share` of the difference."""
        self.values.lerp_(other.values, share)


class TrainedNetwork(FlatNetwork):
    """A network with its gradients and its optimiser. All ranks descend together."""

    def __init__(
        self,
        module: nn.Module,
        rate: float,
        max_grad_norm: float | None,
        group: Group,
        stop: Stop | None = None,
        on_nonfinite: OnNonFinite = "stop",
        borrowed: nn.Module | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(module, borrowed)
        self.gradients = FlatGradients(self._trained.values())
        self.values.grad = self.gradients.flat
        self._group, self._stop = group, stop or Stop(group)
        device = self.values.device
        self.max_grad_norm = torch.tensor(max_grad_norm, device=device) if max_grad_norm is not None else None
        """[]: a tensor, because recorded and compiled steps read it; None without clipping."""
        self.steps = FiniteSteps(device, on_nonfinite)
        self.optimizer = make_adam([self.values], rate, weight_decay=weight_decay)

    def descend(self, loss: Tensor) -> Tensor:
        """Step along the gradient of the loss, averaged over all ranks. Returns the norm of the gradient. Raises
        `StopRun`, without a step, if the ranks agree to stop."""
        self.gradients.zero()
        loss.backward()
        self._average()
        norm = self.gradients.clip(self.max_grad_norm)
        self.steps.take(self.optimizer, norm)
        return norm

    def stop_together(self) -> None:
        """Join the other ranks' next gradient reduction with a gradient of zero and a vote to stop; all ranks then
        raise `StopRun`."""
        self._stop.raise_if_alone()
        self.gradients.zero()
        self._average()

    def _average(self) -> None:
        agreed = self.gradients.average(self._group, vote=self._stop.is_requested and self._group.size > 1)
        self._stop.raise_if(agreed)

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """The optimiser's own memory: the number of steps, and the means of the gradient and of its square."""
        state = self.optimizer.state[self.values]
        if not state:
            state["step"] = torch.zeros((), device=self.values.device)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(self.values.detach()) for _ in range(2))
        return state["step"], state["exp_avg"], state["exp_avg_sq"]

    @property
    def adam(self) -> dict[str, Any]:
        """The optimiser's settings."""
        (group,) = self.optimizer.param_groups
        return {"rate": group["lr"]} | {name: group[name] for name in ("betas", "eps", "weight_decay")}


class Encoding(Protocol):
    """A network with an encoder of its own, as an update rule sees it."""

    def __call__(self, *inputs: Any) -> Tensor: ...

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        """The output of its encoder."""
        ...


class Descending(Encoding, Protocol):
    """A network that is trained."""

    def descend(self, loss: Tensor) -> Tensor:
        """Step along the gradient of a loss of outputs since the last step. Returns the norm of the gradient."""
        ...
