"""`Trunk`: all observation leaves to one feature vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from paceline.accel.compiled_sizes import CompiledBySize
from paceline.errors import UsageError, closest
from paceline.nets.config import RESNETS, PolicyConfig
from paceline.nets.encoders import ImpalaResNet, NatureCNN, PatchEncoder, SampleFactoryConv, VectorEncoder
from paceline.nets.fit import require_encoder
from paceline.nets.images import is_binary, is_image, seen_shape
from paceline.nets.layers import as_float, has_grouped_convolutions
from paceline.nets.registry import ENCODER, ROWS, build
from paceline.nets.resnet import ResNetEncoder, VERResNetEncoder
from paceline.pool.spaces import Leaf

ENCODERS: dict[str, Callable[..., Any]] = {
    "patches": PatchEncoder,
    "nature": NatureCNN,
    "sample_factory": SampleFactoryConv,
    "impala": ImpalaResNet,
    **{name: partial(ResNetEncoder, name=name) for name in RESNETS},
    "ver_resnet18": VERResNetEncoder,
}


class Trunk(nn.Module):
    """Every image goes through an encoder of its own, everything else through one perceptron."""

    def __init__(self, leaves: tuple[Leaf, ...], config: PolicyConfig) -> None:
        super().__init__()
        images = [leaf for leaf in leaves if is_image(leaf)]
        self.leaves = [leaf for leaf in leaves if not is_image(leaf)]
        """The leaves that are not images."""
        self.image_names = [leaf.name for leaf in images]
        encoders = [_encoder(leaf, config) for leaf in images]
        self.images = nn.ModuleList(encoders)
        reduced = _numbers(config.reduced, self.leaves)
        self.vectors: VectorEncoder | None = None
        if self.leaves:
            self.vectors = VectorEncoder(
                [flat_size(leaf) for leaf in self.leaves],
                hidden_sizes=config.hidden,
                activation=config.activation,
                embedding=config.embedding,
                reduced=reduced,
                reduced_hidden=config.reduced_hidden,
            )
        self.num_image_features = sum(encoder.out_features for encoder in encoders)
        """The first features; those of everything else follow."""
        self.out_features = self.num_image_features + (self.vectors.out_features if self.vectors is not None else 0)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        parts = [encoder(obs[name]) for name, encoder in zip(self.image_names, self.images, strict=True)]
        if self.vectors is not None:
            parts.append(self.vectors(join(obs, self.leaves)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def compile_by_size(self) -> None:
        self._compiled_call_impl = CompiledBySize(
            self._call_impl, _num_rows, channels_last=has_grouped_convolutions(self)
        )

    @property
    def is_compiled(self) -> bool:
        return self._compiled_call_impl is not None


def _num_rows(obs: dict[str, Tensor]) -> int:
    return len(next(iter(obs.values())))


def _numbers(names: Sequence[str], leaves: Sequence[Leaf]) -> list[int]:
    """Where the observations with these names are among `leaves`."""
    known = [leaf.name for leaf in leaves]
    for name in names:
        if name not in known:
            raise UsageError(
                f"policy.reduced {name!r} is no observation, or an image{closest(name, known)}; "
                f"allowed: {', '.join(known) or 'none'}"
            )
    return [known.index(name) for name in names]


def _encoder(leaf: Leaf, config: PolicyConfig) -> Any:
    option, shape = "policy.encoder", seen_shape(leaf)
    encoder = build(ENCODER, option, config.encoder, ENCODERS, shape, hidden=config.encoder_size)
    if config.encoder not in ENCODERS:
        dtype = np.float32 if config.normalize_obs else leaf.dtype
        require_encoder(option, config.encoder, encoder, torch.from_numpy(np.zeros((ROWS, *shape), dtype)))
    return encoder


def channels_first(obs: dict[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """Observations, with the channels of images `names` [B, H, W, C] moved to the front."""
    return obs | {name: obs[name].permute(0, 3, 1, 2) for name in names} if names else obs


def flat_size(leaf: Leaf) -> int:
    return sum(leaf.choices) or int(math.prod(leaf.shape))


def join(obs: dict[str, Tensor], leaves: Sequence[Leaf]) -> Tensor:
    """[B, F]: all these leaves in one row."""
    flat = [flatten(obs[leaf.name], leaf) for leaf in leaves]
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


def flatten(values: Tensor, leaf: Leaf) -> Tensor:
    """[B, flat_size]: numbers as they are, discrete values one-hot."""
    if isinstance(leaf.space, spaces.Discrete):
        return functional.one_hot(values, leaf.choices[0]).float()
    if isinstance(leaf.space, spaces.MultiDiscrete):
        columns = values.flatten(1).unbind(1)
        return torch.cat([functional.one_hot(c, n).float() for c, n in zip(columns, leaf.choices, strict=True)], 1)
    if is_binary(leaf.space):
        values = values.float()
    return as_float(values).reshape(values.shape[0], flat_size(leaf))
