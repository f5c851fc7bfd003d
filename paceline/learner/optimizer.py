"""The optimiser and its learning-rate schedule."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from paceline.distributed.reduce import FlatGradients
from paceline.learner.config import OptimizerConfig


def make_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> torch.optim.Adam:
    """Fused Adam whose learning rate is a tensor on CUDA, so that a captured update sees it change."""
    parameters = list(parameters)
    on_cuda = parameters[0].is_cuda
    rate = torch.tensor(config.learning_rate, device=parameters[0].device) if on_cuda else config.learning_rate
    return torch.optim.Adam(
        parameters, lr=rate, betas=(config.beta1, config.beta2), eps=config.eps, fused=True, capturable=on_cuda
    )


def parts_of(gradients: FlatGradients, parameters: Sequence[Sequence[nn.Parameter]]) -> list[FlatGradients]:
    """`gradients` of several modules' parameters, module by module, in the same memory: they are averaged together,
    and each can be clipped by a norm of its own."""
    parts = []
    for flat in gradients.flat.split([sum(parameter.numel() for parameter in own) for own in parameters]):
        part = copy.copy(gradients)
        part.flat = flat
        parts.append(part)
    return parts


def load_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Take over what a saved optimiser has learned. How it computes, and at what rate, is this run's and this device's."""
    groups = [
        group | {name: mine[name] for name in ("lr", "capturable", "fused")}
        for group, mine in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict(saved | {"param_groups": groups})


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
