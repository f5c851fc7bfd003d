"""The parts of a network: what a run can take from another run, and what it can freeze.

- `encoder`: the encoders of images, or the perceptron if there are no images. Normalisers of the same observations
  belong to it: their statistics and the weights were learned together.
- `policy`: everything else that leads to actions. This is the perceptron beside images, the core and the action head.
- `planner`: the planner that steers the policy, if there is one.
- `critic`: the layers that only values need.

A part consists of units. A unit is taken as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch import nn

from paceline.nets.actor_critic import ActorCritic
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.planner import PlannedCore
from paceline.nets.ppo_policy import PPOPolicy
from paceline.nets.trunk import flat_size


class Unit(NamedTuple):
    """Modules of a network that belong together."""

    modules: dict[str, str]
    """Their paths in the network, by role. A module has the same role in every network that can use its weights."""
    settings: tuple[str, ...] = ()
    """Settings of a run that decide what the weights mean. They must be the same where the weights are used again."""
    inputs: tuple[tuple[str, int], ...] = ()
    """What its perceptron, or its core, reads of each observation: the number of values, in order."""


Parts = dict[str, dict[str, Unit]]
"""Units by part and name. A unit has the same name in every network that can use its weights."""
SavedParts = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Parts as checkpoints hold them; see `saved_form`."""
PERCEPTRON = "perceptron"
"""Name and role of a perceptron."""
CORE = "core"
"""Name and role of a core."""
IMAGE = "encoder of "
"""The name of an image's encoder begins with this, and ends with the name of the image."""
IMAGES = "trunk.images."
"""In the names of tensors of images' encoders."""
_ENCODER = ("policy.encoder", "policy.normalize_obs")
REDUCED = ("policy.reduced", "policy.reduced_hidden")
_PERCEPTRON = ("policy.activation", "policy.embedding", *REDUCED, "policy.normalize_obs")
_CORE = ("policy.core.kind",)
_HEAD = (*_CORE, "policy.head.kind", "policy.head.std", "policy.head.squash")
_CRITIC = ("policy.critic", "policy.planner.kind")


def parts_of(policy: PPOPolicy) -> Parts:
    """The parts of a policy of the PPO systems. A controller has those of a policy without a planner. A policy of the
    user's own is one part."""
    if not isinstance(policy, ActorCritic):
        return {"policy": {"policy": Unit({"policy": "own"}, ("policy.kind",))}}
    planned = policy.core if isinstance(policy.core, PlannedCore) else None
    images = {
        f"{IMAGE}{name}": Unit({"encoder": f"{IMAGES}{index}"} | _normalizers(policy, {name: ""}), _ENCODER)
        for index, name in enumerate(policy.trunk.image_names)
    }
    inputs = _inputs(policy) if planned is None else planned.inputs_of_controller
    normalizers = _normalizers(policy, {name: f" of {name}" for name, _ in inputs})
    path = "trunk.vectors" if planned is None else "core.perceptron"
    perceptron = Unit({PERCEPTRON: path} | normalizers, _PERCEPTRON, inputs)
    vectors = {PERCEPTRON: perceptron} if inputs else {}
    core = Unit(
        {CORE: "core" if planned is None else "core.controller"}, _CORE, _inputs_of_core(policy, planned, inputs)
    )
    critic = Unit({"critic": "critic"}, _CRITIC)
    if policy.critic_trunk is not None:
        critic = Unit(critic.modules | {"encoders": "critic_trunk"}, (*_CRITIC, *_ENCODER, *_PERCEPTRON))
    return {
        "encoder": images or vectors,
        "policy": (vectors if images else {}) | {CORE: core, "head": Unit({"head": "head"}, _HEAD)},
        "planner": _planner(policy, planned) if planned is not None else {},
        "critic": {"critic": critic},
    }


def _planner(policy: ActorCritic, core: PlannedCore) -> dict[str, Unit]:
    """What is left without the controller: the planner's own perceptron, its core, and the layer that gives goals."""
    modules, inputs = {"core": "core.planner", "goal": "core.goal"}, _inputs(policy)
    if inputs:
        modules[PERCEPTRON] = "trunk.vectors"
    if policy.normalizes and core.goal_name in policy.names:  # a goal of the task, which only the planner sees
        modules["normalizer"] = f"normalizers.{policy.names.index(core.goal_name)}"
    return {"planner": Unit(modules, ("policy.planner.kind", *_PERCEPTRON), inputs)}


def _inputs(policy: ActorCritic) -> tuple[tuple[str, int], ...]:
    return tuple((leaf.name, flat_size(leaf)) for leaf in policy.trunk.leaves)


def _inputs_of_core(
    policy: ActorCritic, planned: PlannedCore | None, inputs: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int], ...]:
    """What a core reads of each observation. Nothing if hidden layers of the perceptron mix them before."""
    perceptron = policy.trunk.vectors if planned is None else planned.perceptron
    images = ("images", policy.trunk.num_image_features)
    if perceptron is None:
        return (images,)
    if len(perceptron.layers):
        return ()
    return (images, *((name, width) for (name, _), width in zip(inputs, perceptron.widths, strict=True)))


def _normalizers(policy: ActorCritic, roles: Mapping[str, str]) -> dict[str, str]:
    """The normalisers of observations, which have these ends of their roles. A controller's goal has one of its own."""
    found = {}
    for name, role in roles.items() if policy.normalizes else ():
        if isinstance(policy.core, PlannedCore) and name == policy.core.goal_name:
            found[f"normalizer{role}"] = "core.goal_normalizer"
        elif isinstance(policy.normalizers[policy.names.index(name)], ObservationNormalizer):
            found[f"normalizer{role}"] = f"normalizers.{policy.names.index(name)}"
    return found


def saved_form(parts: Parts) -> dict[str, dict[str, dict[str, Any]]]:
    """Parts as checkpoints hold them."""
    return {
        part: {name: {"modules": unit.modules, "inputs": dict(unit.inputs)} for name, unit in units.items()}
        for part, units in parts.items()
    }


def controller_inputs(saved: SavedParts) -> dict[str, int]:
    """The vectors that the perceptron reads, from the parts that a checkpoint holds; the goal of a controller too."""
    units = {**saved.get("encoder", {}), **saved.get("policy", {})}
    return dict(units[PERCEPTRON]["inputs"]) if PERCEPTRON in units else {}


def freeze(network: nn.Module, parts: Parts, frozen: Iterable[str]) -> None:
    """Keep parts as they are: no gradients for their weights, and no updates of their normalisers."""
    for part in frozen:
        for path in [path for unit in parts.get(part, {}).values() for path in unit.modules.values()]:
            module = network.get_submodule(path).requires_grad_(False)
            if isinstance(module, ObservationNormalizer):
                module.is_frozen = True
            # Normalisation layers of a user's own encoder keep their statistics. Gradients may pass through frozen
            # parts after it, and in evaluation mode cuDNN's LSTM has no backward pass.
            if part == "encoder":
                module.eval()
