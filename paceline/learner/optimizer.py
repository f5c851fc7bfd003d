"""Adam and AdamW, with settings that may change during a run."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import unwrap
from typing import Any

import torch
from torch import nn


class EagerAdam(torch.optim.Adam):
    """torch.optim.Adam without its wrappers for torch.compile. They import the compiler, which takes two seconds, and
    an optimiser's step is never compiled here."""

    add_param_group = unwrap(torch.optim.Adam.add_param_group)
    state_dict = unwrap(torch.optim.Adam.state_dict)
    load_state_dict = unwrap(torch.optim.Adam.load_state_dict)
    zero_grad = unwrap(torch.optim.Adam.zero_grad)
    step = torch.no_grad()(unwrap(torch.optim.Adam.step))


def make_adam(parameters: Iterable[nn.Parameter], rate: float, **options: Any) -> torch.optim.Adam:
    """Fused Adam, or AdamW with `weight_decay`. On CUDA the learning rate is a tensor, so that a recorded step sees it
    change."""
    parameters = list(parameters)
    device = parameters[0].device
    on_cuda = device.type == "cuda"
    lr = torch.tensor(rate, device=device) if on_cuda else rate
    return EagerAdam(
        parameters, lr=lr, fused=True, capturable=on_cuda, decoupled_weight_decay="weight_decay" in options, **options
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def load_moments(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Restore the moments of a saved optimiser. The settings stay those of this run and this device: a recorded step
    would keep a learning rate on another device as a constant. Moments that exist keep their memory, for the same
    reason."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(optimizer.state.get(parameter) for parameter in parameters):
        for index, parameter in enumerate(parameters):
            for name, values in optimizer.state[parameter].items():
                values.copy_(saved["state"].get(index, {}).get(name, torch.zeros(())))
        return
    groups = [
        mine | {"params": group["params"]}
        for group, mine in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict(saved | {"param_groups": groups})
