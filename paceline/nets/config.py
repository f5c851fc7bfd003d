"""Settings of the networks. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from paceline.errors import UsageError

CoreKind = Literal["none", "lstm", "gru"]
Activation = Literal["tanh", "relu", "elu"]


@dataclass(frozen=True, kw_only=True)
class CoreConfig:
    """What an agent remembers with."""

    kind: CoreKind = "none"
    """No memory, LSTM or GRU."""
    hidden: int = 512
    """Units per layer."""
    layers: int = 1
    """Layers, 1 or 2."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(CoreKind):
            raise UsageError(f"core.kind {self.kind!r} does not exist; allowed: {', '.join(get_args(CoreKind))}")
        if self.hidden < 1:
            raise UsageError(f"core.hidden must be at least 1, got {self.hidden}")
        if self.layers not in (1, 2):
            raise UsageError(f"core.layers must be 1 or 2, got {self.layers}")


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """How continuous actions are distributed, and where discrete ones start."""

    std: Literal["parameter", "state"] = "parameter"
    """The standard deviation is a learned vector, or a function of the features."""
    initial_log_std: float = 0.0
    """Its logarithm at the start."""
    min_log_std: float = -20.0
    """With `std="state"`, the logarithm is clamped from below."""
    max_log_std: float = 2.0
    """With `std="state"`, the logarithm is clamped from above."""
    squash: bool = False
    """Bound actions smoothly by tanh, instead of clipping them at the environment's bounds."""
    initial_logits: tuple[float, ...] = ()
    """Of a policy's discrete actions at the start, one for each choice; none for all alike. An action that ends the
    episode, say, is better rare at first."""

    def __post_init__(self) -> None:
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
    """The network."""

    encoder: Literal[
        "patches",
        "nature",
        "sample_factory",
        "impala",
        "resnet18",
        "resnet50",
        "se_resnext50",
        "se_resnext101",
        "ver_resnet18",
    ] = "nature"
    """What encodes images."""
    encoder_size: int = 512
    """Features that an image is encoded to."""
    hidden: tuple[int, ...] = (64, 64)
    """Layers that encode everything that is not an image."""
    activation: Literal["tanh", "relu", "elu"] = "tanh"
    """Of those layers."""
    critic: Literal["shared", "separate"] = "shared"
    """Whether actor and critic share their encoders and core."""
    normalize_obs: bool = False
    """Normalise observations by their running mean and variance; images channel by channel."""
    core: CoreConfig = field(default_factory=CoreConfig)
    head: HeadConfig = field(default_factory=HeadConfig)

    def __post_init__(self) -> None:
        if self.critic == "separate" and self.core.kind != "none":
            raise UsageError("policy.critic separate needs policy.core.kind none: a memory is shared")


@dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """What the critic says of returns."""

    kind: Literal["categorical", "mixture", "scalar"] = "categorical"
    """D4PG's distribution over atoms, its mixture of Gaussians, or a number (D3PG)."""
    atoms: int = 51
    """Of a categorical distribution."""
    low: float = -150.0
    """The smallest return that a categorical distribution can speak of ..."""
    high: float = 150.0
    """... and the largest: about the largest discounted return of the task."""
    components: int = 5
    """Gaussians of a mixture."""
    samples: int = 32
    """Drawn from a mixture's target for every loss."""

    def __post_init__(self) -> None:
        if self.kind not in ("categorical", "mixture", "scalar"):
            raise UsageError(f"value.kind {self.kind!r} does not exist; allowed: categorical, mixture, scalar")
        if self.atoms < 2:
            raise UsageError(f"value.atoms must be at least 2, got {self.atoms}")
        if not self.low < self.high:
            raise UsageError(f"value.low must be below value.high, got {self.low} and {self.high}")
        for name in ("components", "samples"):
            if getattr(self, name) < 1:
                raise UsageError(f"value.{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class ControlConfig:
    """The networks of an off-policy agent."""

    actor_hidden: tuple[int, ...] = (256, 256, 256)
    """Layers of the policy; the first is followed by a layer normalisation and tanh, the others by the activation."""
    critic_hidden: tuple[int, ...] = (512, 512, 256)
    """Layers of the critic, likewise."""
    activation: Activation = "elu"
    """After every layer but the first and the last."""
    layer_norm: bool = True
    """Normalise after the first layer, as Acme does; the paper does not."""
    value: ValueConfig = field(default_factory=ValueConfig)

    def __post_init__(self) -> None:
        for name in ("actor_hidden", "critic_hidden"):
            sizes = getattr(self, name)
            if not sizes or min(sizes) < 1:
                raise UsageError(f"control.{name} must be at least one layer of at least 1, got {sizes}")
        if self.activation not in get_args(Activation):
            raise UsageError(
                f"control.activation {self.activation!r} does not exist; allowed: {', '.join(get_args(Activation))}"
            )
