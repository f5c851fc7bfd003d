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
from paceline.nets.cores import Core
from paceline.nets.encoders import VectorEncoder
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.planner import PlannedCore
from paceline.nets.ppo_policy import PPOPolicy
from paceline.nets.trunk import Trunk, flat_size

Sizes = tuple[tuple[str, int], ...]
"""A number for each of several observations, in order."""


class Unit(NamedTuple):
    """Modules of a network that belong together."""

    modules: dict[str, str]
    """Their paths in the network, by role. A module has the same role in every network that can use its weights."""
    settings: tuple[str, ...] = ()
    """Settings of a run that decide what the weights mean. They must be the same where the weights are used again."""
    inputs: Sizes = ()
    """What its perceptron reads of each observation: the number of values."""
    columns: Mapping[str, Sizes] = {}
    """By role: how many columns of the module's first layer belong to each observation. Further columns follow those:
    of features that hidden layers have mixed, and of actions."""


Parts = dict[str, dict[str, Unit]]
"""Units by part and name. A unit has the same name in every network that can use its weights."""
SavedParts = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Parts as checkpoints hold them; see `saved_form`."""
PERCEPTRON = "perceptron"
"""Name and role of a perceptron."""
CORE = "core"
"""Name and role of a core."""
TORSO = "torso"
"""Role of the layers of D4PG's networks that read observations."""
FIRST_LAYERS = {
    PERCEPTRON: "layers.0.weight",
    TORSO: "layers.0.weight",
    CORE: "rnn.weight_ih_l0",
    "head": "linear.weight",
    "critic": "weight",
}
"""The weight of a module's first layer, by role."""
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
    layers = policy.trunk.vectors if planned is None else planned.perceptron
    perceptron = Unit({PERCEPTRON: path} | normalizers, _PERCEPTRON, inputs, _columns_of_perceptron(inputs, layers))
    vectors = {PERCEPTRON: perceptron} if inputs else {}
    features = features_of(policy.trunk, inputs, layers)
    core = Unit({CORE: "core" if planned is None else "core.controller"}, _CORE, columns={CORE: features})
    read_by_head = features if _passes_on(policy.core if planned is None else planned.controller) else ()
    head = Unit({"head": "head"}, _HEAD, columns={"head": read_by_head})
    return {
        "encoder": images or vectors,
        "policy": (vectors if images else {}) | {CORE: core, "head": head},
        "planner": _planner(policy, planned) if planned is not None else {},
        "critic": {"critic": _critic(policy, () if planned is not None else read_by_head)},
    }


def _planner(policy: ActorCritic, core: PlannedCore) -> dict[str, Unit]:
    """What is left without the controller: the planner's own perceptron, its core, and the layer that gives goals."""
    modules, inputs = {CORE: "core.planner", "goal": "core.goal"}, _inputs(policy)
    if inputs:
        modules[PERCEPTRON] = "trunk.vectors"
    if policy.normalizes and core.goal_name in policy.names:  # a goal of the task, which only the planner sees
        modules["normalizer"] = f"normalizers.{policy.names.index(core.goal_name)}"
    layers = policy.trunk.vectors
    columns = _columns_of_perceptron(inputs, layers) | {CORE: features_of(policy.trunk, inputs, layers)}
    return {"planner": Unit(modules, ("policy.planner.kind", *_PERCEPTRON), inputs, columns)}


def _critic(policy: ActorCritic, features: Sizes) -> Unit:
    """The last layer of the critic, which reads `features` of single observations, and its own encoders if it has
    any."""
    trunk = policy.critic_trunk
    if trunk is None:
        return Unit({"critic": "critic"}, _CRITIC, columns={"critic": features})
    modules = {"critic": "critic"}
    modules |= {f"{IMAGE}{name}": f"critic_trunk.images.{index}" for index, name in enumerate(trunk.image_names)}
    inputs, layers = _inputs(policy), trunk.vectors
    if inputs:
        modules[PERCEPTRON] = "critic_trunk.vectors"
    columns = _columns_of_perceptron(inputs, layers) | {"critic": features_of(trunk, inputs, layers)}
    return Unit(modules, (*_CRITIC, *_ENCODER, *_PERCEPTRON), inputs, columns)


def _inputs(policy: ActorCritic) -> Sizes:
    return tuple((leaf.name, flat_size(leaf)) for leaf in policy.trunk.leaves)


def _columns_of_perceptron(inputs: Sizes, perceptron: VectorEncoder | None) -> dict[str, Sizes]:
    """The columns of its first layer, if it has hidden layers."""
    return {PERCEPTRON: _joined(inputs, perceptron)} if perceptron is not None and len(perceptron.layers) else {}


def features_of(trunk: Trunk, inputs: Sizes, perceptron: VectorEncoder | None) -> Sizes:
    """The number of features of each observation: of images, and of what else the perceptron reads (`inputs`) unless
    its hidden layers mix that."""
    images: Iterable[Any] = trunk.images
    seen = tuple((name, encoder.out_features) for name, encoder in zip(trunk.image_names, images, strict=True))
    return seen if perceptron is None or len(perceptron.layers) else seen + _joined(inputs, perceptron)


def _joined(inputs: Sizes, perceptron: VectorEncoder) -> Sizes:
    """The features of each observation where a perceptron joins them."""
    return tuple((name, width) for (name, _), width in zip(inputs, perceptron.widths, strict=True))


def _passes_on(core: nn.Module) -> bool:
    """Whether a core has no memory, so that features pass unchanged."""
    return isinstance(core, Core) and core.state_size == 0


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
        part: {
            name: {
                "modules": unit.modules,
                "inputs": dict(unit.inputs),
                "columns": {role: dict(sizes) for role, sizes in unit.columns.items()},
            }
            for name, unit in units.items()
        }
        for part, units in parts.items()
    }


def names_columns(saved: SavedParts) -> bool:
    """Whether a checkpoint says which columns belong to which observation. Older checkpoints do not."""
    return all("columns" in unit for units in saved.values() for unit in units.values())


def image_names(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The images that have encoders."""
    return [name.removeprefix(IMAGE) for name in parts.get("encoder", {}) if name.startswith(IMAGE)]


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
