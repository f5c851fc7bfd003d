"""The parts of a network: what a run can take from another run, and what it can freeze.

- `encoder`: the encoders of images, or the perceptron if there are no images. Normalisers of the same observations
  belong to it: their statistics and the weights were learned together.
- `policy`: everything else that leads to actions. This is the perceptron beside images, the core and the action head.
- `critic`: the layers that only values need.

A part consists of units. A unit is taken as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from paceline.nets.normalizer import ObservationNormalizer


class Unit(NamedTuple):
    """Modules of a network that belong together."""

    modules: tuple[str, ...]
    """Their paths in the network."""
    settings: tuple[str, ...] = ()
    """Settings of a run that decide what the weights mean. They must be the same where the weights are used again."""


Parts = dict[str, dict[str, Unit]]
"""Units by part and name. A unit has the same name in every network that can use its weights."""


def module_paths(parts: Parts) -> dict[str, dict[str, list[str]]]:
    """The modules of every unit, as checkpoints hold them."""
    return {part: {name: list(unit.modules) for name, unit in units.items()} for part, units in parts.items()}


def freeze(network: nn.Module, parts: Parts, frozen: Iterable[str]) -> None:
    """Keep parts as they are: no gradients for their weights, and no updates of their normalisers."""
    for part in frozen:
        for unit in parts[part].values():
            for path in unit.modules:
                module = network.get_submodule(path).requires_grad_(False).eval()
                if isinstance(module, ObservationNormalizer):
                    module.is_frozen = True
