"""Settings of the networks, and the names of their parts. Free of PyTorch: the command line reads them.

Where a setting names a part, `package.module:Class` names a class of the user's own (see `nets/registry.py`). Python
programs may give the class itself; the setting then holds its import path.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import UsageError
from paceline.own_code import check_choice, is_importable, write_paths

POLICIES = ("chain",)
RESNETS = ("resnet18", "resnet50", "se_resnext50", "se_resnext101")
ENCODERS = ("patches", "nature", "sample_factory", "impala", *RESNETS, "ver_resnet18")
CORES = ("none", "lstm", "gru")
HEADS = ("independent",)
VALUE_HEADS = ("categorical", "mixture", "scalar")
ACTIVATIONS = ("tanh", "relu", "elu")
PARTS = ("encoder", "policy", "planner", "critic")
"""Parts of a network that a run can take from another run, or freeze (see `nets/parts.py`)."""


def named_parts(option: str, names: str | None) -> tuple[str, ...]:
    """The parts that an option names, for example `encoder+policy`, in the order of `PARTS`. Nothing for None."""
    if names is None:
        return ()
    found = names.split("+")
    if not set(found) <= set(PARTS) or len(set(found)) < len(found):
        raise UsageError(
            f"{option} {names!r} does not exist; allowed: {', '.join(PARTS)}, or several of them, such as "
            f"{PARTS[0]}+{PARTS[1]}"
        )
    return tuple(part for part in PARTS if part in found)


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """The memory of a policy."""

    kind: str = "none"
    """none, lstm, gru, or package.module:Class for your own."""
    hidden: int = 512
    """Units per layer."""
    layers: int = 1
    """Layers, 1 or 2."""

    def __post_init__(self) -> None:
        write_paths(self, "kind")
        check_choice("core.kind", self.kind, CORES)
        if self.hidden < 1:
            raise UsageError(f"core.hidden must be at least 1, got {self.hidden}")
        if self.layers not in (1, 2):
            raise UsageError(f"core.layers must be 1 or 2, got {self.layers}")


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    """A planner that steers the policy of another run: the neural controller of DD-PPO (see `nets/planner.py`)."""

    kind: str = "none"
    """The memory of the planner: none for no planner, lstm, gru, or package.module:Class for your own."""
    hidden: int = 512
    """Units per layer."""
    layers: int = 2
    """Layers, 1 or 2."""
    goal: str = "goal"
    """The observation of the policy that the planner gives instead of the environment: a distance, and a direction of
    two numbers."""

    def __post_init__(self) -> None:
        write_paths(self, "kind")
        check_choice("planner.kind", self.kind, CORES)
        if self.hidden < 1:
            raise UsageError(f"planner.hidden must be at least 1, got {self.hidden}")
        if self.layers not in (1, 2):
            raise UsageError(f"planner.layers must be 1 or 2, got {self.layers}")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """The distribution of actions."""

    kind: str = "independent"
    """independent (an action's components are independent given the features), or package.module:Class for your own."""
    std: Literal["parameter", "state"] = "parameter"
    """The standard deviation of continuous actions is a learned vector, or a function of the features."""
    initial_log_std: float = 0.0
    """Initial logarithm of the standard deviation."""
    min_log_std: float = -20.0
    """With `std="state"`, the lower bound of the logarithm."""
    max_log_std: float = 2.0
    """With `std="state"`, the upper bound of the logarithm."""
    squash: bool = False
    """Bound continuous actions smoothly by tanh, instead of clipping them at the environment's bounds."""
    initial_logits: tuple[float, ...] = ()
    """Initial logits of discrete actions, one per choice; empty for equal ones. They make an action rare at first, for
    example one that ends the episode."""

    def __post_init__(self) -> None:
        write_paths(self, "kind")
        check_choice("head.kind", self.kind, HEADS)
        if self.std not in ("parameter", "state"):
            raise UsageError(f"head.std {self.std!r} does not exist; allowed: parameter, state")
        if not self.min_log_std < self.max_log_std:
            raise UsageError(f"head.min_log_std {self.min_log_std} must be below head.max_log_std {self.max_log_std}")
        if self.std == "state" and not self.min_log_std <= self.initial_log_std <= self.max_log_std:
            raise UsageError(
                f"head.initial_log_std must be within [{self.min_log_std}, {self.max_log_std}], "
                f"got {self.initial_log_std}"
            )


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """The network of the PPO systems. d4pg reads `encoder`, `encoder_size`, `reduced`, `reduced_hidden` and
    `normalize_obs`."""

    kind: str = "chain"
    """chain (encoders, core, head and critic, as the other options say), or package.module:Class for a whole policy of
    your own."""
    encoder: str = "nature"
    """Encoder of images: patches, nature, sample_factory, impala, resnet18, resnet50, se_resnext50, se_resnext101,
    ver_resnet18, or package.module:Class for your own."""
    encoder_size: int = 512
    """Features of an encoded image."""
    embedding: int = 0
    """Features of a linear layer for each observation that is no image, before they are joined. 0: no such layers."""
    reduced: tuple[str, ...] = ()
    """Observations that are no images, and that layers of their own reduce before they are joined with the others: the
    terrain of parkour, for example."""
    reduced_hidden: tuple[int, ...] = (200, 100)
    """These layers, each with ELU. The last one gives the features."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the perceptron that encodes everything but images. Empty: they are only joined."""
    activation: str = "tanh"
    """Activation of those layers: tanh, relu, elu, or package.module:Class for your own."""
    critic: Literal["shared", "separate"] = "shared"
    """Whether the critic shares the actor's encoders and core."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and variance; images channel by channel. d4pg does not
    normalise images."""
    core: CoreConfig = field(default_factory=CoreConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)

    def __post_init__(self) -> None:
        write_paths(self, "kind", "encoder", "activation")
        check_choice("policy.kind", self.kind, POLICIES)
        check_choice("policy.encoder", self.encoder, ENCODERS)
        check_choice("policy.activation", self.activation, ACTIVATIONS)
        if self.is_own and (self.normalize_obs or self.planner.kind != "none"):
            option = "normalize_obs" if self.normalize_obs else "planner"
            raise UsageError(f"policy.{option} has no effect on policy.kind {self.kind}; it is read by: chain")
        if self.embedding < 0:
            raise UsageError(f"policy.embedding must be at least 0, got {self.embedding}")
        if not self.reduced_hidden or min(self.reduced_hidden) < 1:
            raise UsageError(
                f"policy.reduced_hidden must be at least one layer of at least 1, got {self.reduced_hidden}"
            )
        if self.reduced and self.planner.kind != "none":
            raise UsageError("policy.reduced has no effect on a planner; allowed: policy.planner.kind none")
        if self.critic == "separate" and self.core.kind != "none":
            raise UsageError(
                "policy.critic separate needs policy.core.kind none: a memory is shared; allowed: policy.critic shared"
            )
        if self.critic == "separate" and self.planner.kind != "none":
            raise UsageError("policy.critic separate needs policy.planner.kind none: the critic reads the planner")

    def joined(self, name: str, size: int) -> int:
        """Features of an observation with `size` numbers, where it is joined with the others."""
        return self.reduced_hidden[-1] if name in self.reduced else self.embedding or size

    @property
    def is_own(self) -> bool:
        """Whether the whole policy is a class of the user's own."""
        return self.kind not in POLICIES


@dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """The return distribution that D4PG's critic predicts."""

    kind: str = "categorical"
    """categorical (atoms), mixture (of Gaussians), scalar (one number, D3PG), or package.module:Class for your own."""
    atoms: int = 51
    """Atoms of a categorical distribution."""
    low: float = -150.0
    """Lowest atom."""
    high: float = 150.0
    """Highest atom: about the largest discounted return of the task."""
    components: int = 5
    """Gaussians of a mixture."""
    samples: int = 32
    """Samples of the target mixture in each loss."""

    def __post_init__(self) -> None:
        write_paths(self, "kind")
        check_choice("value.kind", self.kind, VALUE_HEADS)
        if self.atoms < 2:
            raise UsageError(f"value.atoms must be at least 2, got {self.atoms}")
        if not self.low < self.high:
            raise UsageError(f"value.low must be below value.high, got {self.low} and {self.high}")
        for name in ("components", "samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"value.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class ControlConfig:
    """The networks of D4PG."""

    actor_hidden: tuple[int, ...] = (256, 256, 256)
    """Hidden layers of the policy. Layer normalisation and tanh follow the first, the activation follows the others."""
    critic_hidden: tuple[int, ...] = (512, 512, 256)
    """Hidden layers of the critic, with the same activations."""
    activation: str = "elu"
    """Activation after every hidden layer but the first: tanh, relu, elu, or package.module:Class for your own."""
    layer_norm: bool = True
    """Normalise after the first layer, as Acme does; the paper does not."""
    value: ValueConfig = field(default_factory=ValueConfig)

    def __post_init__(self) -> None:
        for name in ("actor_hidden", "critic_hidden"):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < 1:
                raise UsageError(f"control.{name} must be at least one layer of at least 1, got {sizes}")
        write_paths(self, "activation")
        check_choice("control.activation", self.activation, ACTIVATIONS)


def named_classes(policy: PolicyConfig, control: ControlConfig) -> dict[str, str]:
    """Options that name a class of the user's own, and those names. Making the networks runs this code."""
    options = {
        "policy.kind": policy.kind,
        "policy.encoder": policy.encoder,
        "policy.activation": policy.activation,
        "policy.core.kind": policy.core.kind,
        "policy.planner.kind": policy.planner.kind,
        "policy.head.kind": policy.head.kind,
        "control.activation": control.activation,
        "control.value.kind": control.value.kind,
    }
    return {option: name for option, name in options.items() if is_importable(name)}
