"""All weights of a network in one tensor: an optimiser's step and a copy to a target are a few operations, however many layers
there are."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from paceline.distributed.reduce import FlatGradients
from paceline.distributed.runtime import Group
from paceline.learner.config import OnNonFinite
from paceline.learner.finite import FiniteSteps
from paceline.stop import Stop


class FlatNetwork:
    """A module whose parameters have become views into `values`, and their gradients into `gradients.flat`.

    Take references to the module's tensors only afterwards: the old ones are no longer its own.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        parameters = list(module.parameters())
        self.values = nn.Parameter(torch.cat([parameter.detach().flatten() for parameter in parameters]))
        """What an optimiser moves."""
        sizes = [parameter.numel() for parameter in parameters]
        for parameter, part in zip(parameters, self.values.detach().split(sizes), strict=True):
            parameter.data = part.view_as(parameter)
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if trained:
            self.gradients = FlatGradients(trained)
            self.values.grad = self.gradients.flat

    def __call__(self, *inputs: Any) -> Tensor:
        return self.module(*inputs)

    def views(self, values: Tensor) -> dict[str, Tensor]:
        """`values`, laid out like ours, cut into named parameters."""
        named = dict(self.module.named_parameters())
        parts = values.split([parameter.numel() for parameter in named.values()])
        return {name: part.view(named[name].shape) for name, part in zip(named, parts, strict=True)}

    @torch.no_grad()
    def follow(self, other: FlatNetwork, share: float) -> None:
        """Take over a share of another's weights."""
        self.values.lerp_(other.values, share)


class Trained(FlatNetwork):
    """A network that is moved by Adam, by all ranks together."""

    def __init__(
        self,
        module: nn.Module,
        rate: float,
        max_grad_norm: float | None,
        group: Group,
        stop: Stop | None = None,
        on_nonfinite: OnNonFinite = "stop",
    ) -> None:
        super().__init__(module)
        self.max_grad_norm, self._group, self._stop = max_grad_norm, group, stop or Stop(group)
        self.steps = FiniteSteps(self.values.device, on_nonfinite)
        self.optimizer = torch.optim.Adam([self.values], lr=rate, fused=True, capturable=self.values.is_cuda)

    def descend(self, loss: Tensor) -> Tensor:
        """Move by the gradient of the loss, averaged over all ranks; its norm. Where ranks stop, nothing is moved."""
        self.gradients.zero()
        loss.backward()
        self._average()
        norm = self.gradients.clip(self.max_grad_norm)
        self.steps.take(self.optimizer, norm)
        return norm

    def stop_together(self) -> None:
        """Join the other ranks' next gradient reduction with a gradient of zero and a vote to stop; all ranks then raise `StopRun`."""
        self._stop.raise_if_alone()
        self.gradients.zero()
        self._average()

    def _average(self) -> None:
        agreed = self.gradients.average(self._group, vote=self._stop.is_requested and self._group.size > 1)
        self._stop.raise_if(agreed)

    def moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Steps taken, and the means of the gradient and of its square: the optimiser's own memory, for who moves the network
        in its stead."""
        state = self.optimizer.state[self.values]
        if not state:
            state["step"] = torch.zeros((), device=self.values.device)
            state["exp_avg"], state["exp_avg_sq"] = (torch.zeros_like(self.values.detach()) for _ in range(2))
        return state["step"], state["exp_avg"], state["exp_avg_sq"]

    @property
    def adam(self) -> dict[str, Any]:
        """The optimiser's settings."""
        (group,) = self.optimizer.param_groups
        return {"rate": group["lr"], "betas": group["betas"], "eps": group["eps"]}


class Descending(Protocol):
    """What an update needs of a network that it moves: `Trained` is one."""

    def __call__(self, *inputs: Any) -> Tensor: ...

    def descend(self, loss: Tensor) -> Tensor:
        """Move by the gradient of a loss of the last call's output; its norm."""
        ...
