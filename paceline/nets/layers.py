"""Layers that several networks share."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor, nn

from paceline.accel.activations import ELU, Tanh
from paceline.nets.registry import ACTIVATION, build

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": Tanh, "relu": nn.ReLU, "elu": ELU}


def make_activation(name: str) -> nn.Module:
    return build(ACTIVATION, "activation", name, ACTIVATIONS)


class LastLayer(nn.Linear):
    """A linear layer that computes in float32, whatever the precision of the layers before it.

    It gives values and the parameters of actions. bfloat16 has eight bits: a value near 100 would come in steps of 0.5.
    """

    stays_float32 = True

    def forward(self, features: Tensor) -> Tensor:
        """[B, F] in any precision to [B, O] in that of the weights."""
        device = features.device.type
        if not torch.is_autocast_enabled(device):  # switching it off takes as long as the layer itself
            return super().forward(features.to(self.weight.dtype))
        with torch.autocast(device, enabled=False):
            return super().forward(features.to(self.weight.dtype))


def has_convolutions(network: nn.Module) -> bool:
    """Whether PyTorch's own kernels compute any convolution of a network."""
    encoders = [module for module in network.modules() if getattr(module, "as_matrices", False)]
    own = {conv for encoder in encoders for conv in encoder.modules()}
    return any(isinstance(module, nn.Conv2d) and module not in own for module in network.modules())


def has_grouped_convolutions(network: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) and module.groups > 1 for module in network.modules())


def as_float(obs: Tensor) -> Tensor:
    """`obs` as float32: bytes scaled to [0, 1], other numbers as they are."""
    if obs.dtype == torch.uint8:
        return obs * (1 / 255)  # cast and scaled in one pass over memory
    return obs if obs.dtype == torch.float32 else obs.float()


def orthogonal(layer: Layer, gain: float) -> Layer:
    """`layer`, with orthogonal weights times `gain` and zero biases."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
