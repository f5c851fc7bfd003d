"""The optimiser and its learning-rate schedule."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn

from paceline.distributed.reduce import FlatGradients
from paceline.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam."""

    learning_rate: float = 2.5e-4
    """At the start of the run."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls to 0 over the run: over its steps, or its seconds if those will end it first."""
    eps: float = 1e-5
    """Adam's epsilon."""
    beta1: float = 0.9
    """Adam's decay of the mean gradient."""
    beta2: float = 0.999
    """Adam's decay of the squared gradient."""
    max_grad_norm: float | None = 0.5
    """Longer gradients are scaled down to this; None leaves them."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise UsageError(f"optimizer.learning_rate must be above 0, got {self.learning_rate}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UsageError(f"optimizer.max_grad_norm must be above 0 or None, got {self.max_grad_norm}")
        if self.schedule not in ("constant", "linear", "cosine"):
            raise UsageError(f"optimizer.schedule {self.schedule!r} does not exist; allowed: constant, linear, cosine")

    def rate_at(self, progress: float) -> float:
        """The learning rate after a share `progress` of the run: a function of counted steps, so resuming keeps it."""
        progress = min(max(progress, 0.0), 1.0)
        if self.schedule == "linear":
            return self.learning_rate * (1 - progress)
        if self.schedule == "cosine":
            return self.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
        return self.learning_rate


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
