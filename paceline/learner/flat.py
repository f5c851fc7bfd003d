"""All weights of a network in one tensor: an optimiser's step and a copy to a target are a few operations, however many layers
there are."""

from __future__ import annotations

import torch
from torch import nn

from paceline.distributed.reduce import FlatGradients


class FlatNetwork:
    """A module whose parameters have become views into `values`, and their gradients into `gradients.flat`.

    Take references to the module's tensors only afterwards: the old ones are no longer its own.
    """

    def __init__(self, module: nn.Module) -> None:
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

    @torch.no_grad()
    def follow(self, other: FlatNetwork, share: float) -> None:
        """Take over a share of another's weights."""
        self.values.lerp_(other.values, share)
