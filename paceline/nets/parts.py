"""The parts of a network: what a run can take from another run, and what it can freeze.

- `encoder`: the encoders of images, or the perceptron if there are no images. Normalisers of the same observations
  belong to it: their statistics and the weights were learned together.
- `policy`: everything else that leads to actions. This is the perceptron beside images, the core and the action head.
- `planner`: the planner that steers the policy, if there is one.
- `critic`: the layers that only values need.

A part consists of units. A unit is taken as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch import nn

from paceline.nets.actor_critic import ActorCritic
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.planner import PlannedCore


class Unit(NamedTuple):
    """Modules of a network that belong together."""

    modules: tuple[str, ...]
    """Their paths in the network."""
    settings: tuple[str, ...] = ()
    """Settings of a run that decide what the weights mean. They must be the same where the weights are used again."""


Parts = dict[str, dict[str, Unit]]
"""Units by part and name. A unit has the same name in every network that can use its weights."""
IMAGE = "encoder of "
"""The name of an image's encoder begins with this, and ends with the name of the image."""
_ENCODER = ("policy.encoder", "policy.normalize_obs")
_PERCEPTRON = ("policy.activation", "policy.normalize_obs")
_CORE = ("policy.core.kind",)
_HEAD = (*_CORE, "policy.head.kind", "policy.head.std", "policy.head.squash")
_CRITIC = ("policy.critic", "policy.planner.kind")


def parts_of(policy: ActorCritic) -> Parts:
    """The parts of a policy of the PPO systems. A controller has the same as a policy without a planner."""
    planned = policy.core if isinstance(policy.core, PlannedCore) else None
    images = {
        f"{IMAGE}{name}": Unit((f"trunk.images.{index}", *_normalizers(policy, [name])), _ENCODER)
        for index, name in enumerate(policy.trunk.image_names)
    }
    names = planned.names if planned is not None else [leaf.name for leaf in policy.trunk.leaves]
    perceptron = Unit(
        ("trunk.vectors" if planned is None else "core.perceptron", *_normalizers(policy, names)), _PERCEPTRON
    )
    vectors = {f"perceptron of {', '.join(names)}": perceptron} if names else {}
    core = Unit(("core" if planned is None else "core.controller",), _CORE)
    critic = Unit(("critic",), _CRITIC)
    if policy.critic_trunk is not None:
        critic = Unit(("critic", "critic_trunk"), (*_CRITIC, *_ENCODER, *_PERCEPTRON))
    return {
        "encoder": images or vectors,
        "policy": (vectors if images else {}) | {"core": core, "head": Unit(("head",), _HEAD)},
        "planner": _planner(policy, planned) if planned is not None else {},
        "critic": {"critic": critic},
    }


def _planner(policy: ActorCritic, core: PlannedCore) -> dict[str, Unit]:
    """What is left without the controller: the planner's own perceptron, its core, and the layer that gives goals."""
    names = [leaf.name for leaf in policy.trunk.leaves]
    modules = ["core.planner", "core.goal", *(["trunk.vectors"] if names else [])]
    if policy.normalizes and core.goal_name in names:  # a goal of the task, which only the planner sees
        modules.append(f"normalizers.{policy.names.index(core.goal_name)}")
    of = f" of {', '.join(names)}" if names else ""
    return {f"planner{of}": Unit(tuple(modules), ("policy.planner.kind", *_PERCEPTRON))}


def _normalizers(policy: ActorCritic, names: Iterable[str]) -> list[str]:
    """The paths of the normalisers of observations. A controller's goal has one of its own."""
    found = []
    for name in names if policy.normalizes else ():
        if isinstance(policy.core, PlannedCore) and name == policy.core.goal_name:
            found.append("core.goal_normalizer")
        elif isinstance(policy.normalizers[policy.names.index(name)], ObservationNormalizer):
            found.append(f"normalizers.{policy.names.index(name)}")
    return found


def module_paths(parts: Parts) -> dict[str, dict[str, list[str]]]:
    """The modules of every unit, as checkpoints hold them."""
    return {part: {name: list(unit.modules) for name, unit in units.items()} for part, units in parts.items()}


def freeze(network: nn.Module, parts: Parts, frozen: Iterable[str]) -> None:
    """Keep parts as they are: no gradients for their weights, and no updates of their normalisers."""
    for part in frozen:
        for path in [path for unit in parts.get(part, {}).values() for path in unit.modules]:
            module = network.get_submodule(path).requires_grad_(False)
            if isinstance(module, ObservationNormalizer):
                module.is_frozen = True
            # Normalisation layers of a user's own encoder keep their statistics. Gradients may pass through frozen
            # parts after it, and in evaluation mode cuDNN's LSTM has no backward pass.
            if part == "encoder":
                module.eval()
