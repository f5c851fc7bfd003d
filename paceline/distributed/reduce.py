"""All gradients in one flat buffer: one memset, one all-reduce and one norm, however many parameters there are.

`DistributedDataParallel` hooks into every parameter and must be told of unused ones. Here the gradient of an unused
parameter is zero on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from paceline.distributed.runtime import Group


class FlatGradients:
    """The gradients of `parameters`, as views into one buffer. Never set a `.grad` to None afterwards."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        sizes = [parameter.numel() for parameter in parameters]
        self._sent = torch.zeros(sum(sizes) + 1, device=parameters[0].device, dtype=parameters[0].dtype)
        """The gradients, followed by this rank's vote."""
        self.flat = self._sent[:-1]
        for parameter, part in zip(parameters, self.flat.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def zero(self) -> None:
        self.flat.zero_()

    def average(self, group: Group, vote: bool = False) -> bool:
        """Replace the gradient by its mean over all ranks, which weigh the same. Returns whether any rank votes.

        The vote travels in the same all-reduce: it needs no message of its own.
        """
        if group.size == 1:
            return vote
        self._sent[-1] = float(vote)
        group.mean_(self._sent)
        return bool(self._sent[-1] > 0)

    def clip(self, max_norm: float | Tensor | None) -> Tensor:
        """Scale the gradient down to `max_norm` if it is longer; its norm before that."""
        return clip_(self.flat, max_norm)


def clip_(gradient: Tensor, max_norm: float | Tensor | None) -> Tensor:
    """Scale `gradient` down to `max_norm` if it is longer; its norm before that."""
    norm = gradient.norm()
    if max_norm is not None:
        gradient.mul_(((norm + 1e-6).reciprocal() * max_norm).clamp(max=1.0))
    return norm


def synchronize(module: nn.Module, group: Group) -> None:
    """Copy rank 0's parameters and buffers to every rank."""
    if group.size > 1:
        for tensor in [*module.parameters(), *module.buffers()]:
            group.broadcast_(tensor.data)


@torch.no_grad()
def synchronize_from(module: nn.Module, group: Group, source: int) -> None:
    """Copy the parameters and saved buffers of rank `source` to every rank, in one message."""
    # Large elements first, so that each is aligned in the message.
    tensors = sorted(module.state_dict().values(), key=lambda tensor: -tensor.element_size())
    sent = torch.cat([tensor.reshape(-1).view(torch.uint8) for tensor in tensors])
    group.broadcast_(sent, source)
    if group.rank != source:
        sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
        for tensor, part in zip(tensors, sent.split(sizes), strict=True):
            tensor.copy_(part.view(tensor.dtype).view(tensor.shape))
