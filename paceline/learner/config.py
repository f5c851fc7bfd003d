"""Settings of the learners. Free of PyTorch: the command line reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from paceline.errors import UsageError

OnNonFinite = Literal["stop", "skip"]


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
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"optimizer.{name} must be at least 0 and below 1, got {getattr(self, name)}")
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


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig:
    """What a policy with memory is taught besides acting."""

    kind: Literal["none", "cpca"] = "none"
    """Nothing, or CPC|A: to tell from its memory what it will see after its next actions."""
    weight: float = 0.1
    """Of this loss."""
    steps: int = 20
    """How many steps ahead are predicted at most, within the same episode."""
    negatives: int = 20
    """Observations of other rows that each true one is to be told from."""
    share: float = 0.1
    """Of the rows, that are predicted from: neighbouring ones teach nearly the same, at the full price."""
    hidden: int = 512
    """Units of the GRU that follows the actions, and of the classifier."""

    def __post_init__(self) -> None:
        if self.kind not in ("none", "cpca"):
            raise UsageError(f"auxiliary.kind {self.kind!r} does not exist; allowed: none, cpca")
        for name in ("steps", "negatives", "hidden"):
            if getattr(self, name) < 1:
                raise UsageError(f"auxiliary.{name} must be at least 1, got {getattr(self, name)}")
        if not self.weight > 0:
            raise UsageError(f"auxiliary.weight must be above 0, got {self.weight}; kind none switches the loss off")
        if not 0 < self.share <= 1:
            raise UsageError(f"auxiliary.share must be above 0 and at most 1, got {self.share}")


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """How a rollout is learned from."""

    epochs: int = 2
    """Passes over each rollout."""
    minibatches: int = 2
    """Gradient steps per pass."""
    discount: float = 0.99
    """Gamma: what a reward one step later is worth."""
    trace_decay: float = 0.95
    """Lambda (DD-PPO's tau) of generalized advantage estimation."""
    targets: Literal["auto", "gae", "vtrace"] = "auto"
    """What rows teach: generalized advantage estimation by the values of when they were decided, or V-trace, which
    corrects for a policy that has moved on since. auto takes V-trace for appo and gae for the others."""
    trace: Literal["auto", "update", "minibatch"] = "auto"
    """When V-trace asks what the policy makes of the rows by now: before each update, of all of them, so that mini-batches are what they
    are without it; or in every mini-batch, which then is of whole streams, as Sample Factory does. auto asks before updates of several
    passes, of which that is a small part."""
    max_rho: float = 1.0
    """V-trace's rho-bar: truncates the weights that decide which policy's value is learned, and those of rows where ratios are to the policy
    before the update."""
    max_c: float = 1.0
    """V-trace's c-bar: truncates the weights that decide how far corrections reach."""
    rho_in_advantage: bool = False
    """Weigh V-trace's advantages by rho as well, as Sample Factory's code does: then it counts twice, since the
    probability ratio, or the weight of the row, has it already."""
    clip: float | None = 0.2
    """Epsilon: how far the probability ratio may move before it gains nothing more. None does not limit it: the plain
    policy gradient, weighted by the ratio up to max_rho."""
    clip_around: Literal["acting", "update"] = "acting"
    """Which policy that ratio is to: the one that acted, as in PPO and in Sample Factory, so that the way from there to the update counts
    too; or the one before the update, and rows are weighted by V-trace's rho for that way. Where no row is behind both are the same (if
    max_rho is at least 1): it is for appo, where V-trace asks the policy before updates. clip_fraction and approx_kl, and with it
    target_kl, are about the same ratio."""
    clip_inverse: bool = False
    """Let the ratio move from 1 / (1 + clip) to 1 + clip, as Sample Factory does, instead of from 1 - clip."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    value_clip: float | None = None
    """Limit a value's change per rollout to this; None does not."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus; where it is learned, its initial value."""
    entropy_target: float | None = None
    """Learn that weight, so that the policy's entropy does not stay below this many nats, summed over the components
    of an action (VER: 0, for Gaussian actions, whose entropy may be negative). None keeps it constant."""
    entropy_bounds: tuple[float, float] = (1e-4, 1.0)
    """What a learned weight stays within."""
    normalize_advantage: bool = False
    """Give advantages mean 0 and deviation 1 over the rollouts of all ranks; DD-PPO does not."""
    normalize_returns: bool = False
    """Divide rewards by the running standard deviation of the discounted returns of all ranks."""
    target_kl: float | None = None
    """Stop the passes over a rollout once the policy has moved this far; None never does."""
    sequences: Literal["auto", "packed", "columns"] = "auto"
    """How a recurrent policy's rows are batched: as packed sequences of single episodes, or as whole columns (all
    steps of a slot), which can be recorded as a CUDA graph. auto takes columns where updates are recorded, and on a CPU for an
    LSTM of 256 units or more where mini-batches have at least four columns."""
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)

    def __post_init__(self) -> None:
        for name in ("epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise UsageError(f"ppo.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("discount", "trace_decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise UsageError(f"ppo.{name} must be between 0 and 1, got {getattr(self, name)}")
        if self.sequences not in ("auto", "packed", "columns"):
            raise UsageError(f"ppo.sequences {self.sequences!r} does not exist; allowed: auto, packed, columns")
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"ppo.clip must be above 0 or None, got {self.clip}")
        for name in ("max_rho", "max_c"):
            if not getattr(self, name) > 0:
                raise UsageError(f"ppo.{name} must be above 0, got {getattr(self, name)}")
        for name, allowed in (
            ("targets", ("auto", "gae", "vtrace")),
            ("trace", ("auto", "update", "minibatch")),
            ("clip_around", ("acting", "update")),
        ):
            if getattr(self, name) not in allowed:
                raise UsageError(f"ppo.{name} {getattr(self, name)!r} does not exist; allowed: {', '.join(allowed)}")
        low, high = self.entropy_bounds
        if not 0 < low <= high:
            raise UsageError(f"ppo.entropy_bounds must be above 0 and in rising order, got {low} and {high}")
        if self.entropy_target is not None and not low <= self.entropy_coef <= high:
            raise UsageError(
                f"ppo.entropy_coef is {self.entropy_coef}; a learned one (ppo.entropy_target) has to start within "
                f"ppo.entropy_bounds, between {low} and {high}"
            )

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """Between what the probability ratio is clipped."""
        assert self.clip is not None
        return (1 / (1 + self.clip) if self.clip_inverse else 1 - self.clip), 1 + self.clip

    @property
    def is_traced(self) -> bool:
        """Whether targets are V-trace's; auto, which a run has resolved, stands for gae."""
        return self.targets == "vtrace"

    @property
    def traces_minibatches(self) -> bool:
        """Whether targets are V-trace's, and computed in every mini-batch anew."""
        return self.is_traced and (self.trace == "minibatch" or (self.trace == "auto" and self.epochs == 1))

    @property
    def clips_around_update(self) -> bool:
        """Whether ratios are to the policy before the update, and V-trace has asked that."""
        return self.clip_around == "update" and self.clip is not None and self.is_traced and not self.traces_minibatches


@dataclass(frozen=True, kw_only=True)
class D4PGConfig:
    """How transitions are learned from."""

    batch: int = 256
    """M: transitions of an update."""
    steps: int = 5
    """N: steps of a transition."""
    discount: float = 0.99
    """Gamma."""
    noise: float = 0.3
    """Epsilon: deviation of the Gaussian noise on actions, of which the range is 2."""
    actor_rate: float = 1e-4
    """Learning rate of the policy."""
    critic_rate: float = 1e-4
    """Learning rate of the critic."""
    target_period: int = 100
    """t_target: updates between two copies to the target networks."""
    target_share: float = 1.0
    """How much of the new weights a target network takes over then; with a period of 1, Polyak averaging."""
    max_action_gradient: float | None = 1.0
    """Longer gradients of the value by the action are scaled down to this, as in Acme; None leaves them."""
    max_grad_norm: float | None = None
    """Longer gradients of the weights are scaled down to this; None leaves them."""
    actors_period: int = 1
    """t_actors: updates between two deliveries of the policy to those who act."""
    evaluation_envs: int = 1
    """Environments that act without noise, and that nothing is learned from: their returns are reported as
    evaluation_return. Of few environments none are spared for it: at most one in four."""
    beside: bool = True
    """Collect and learn at the same time; otherwise in turn, as deterministic runs and batched simulators do."""

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "target_period", "actors_period"):
            if getattr(self, name) < 1:
                raise UsageError(f"d4pg.{name} must be at least 1, got {getattr(self, name)}")
        for name in ("actor_rate", "critic_rate"):
            if not getattr(self, name) > 0:
                raise UsageError(f"d4pg.{name} must be above 0, got {getattr(self, name)}")
        if self.max_grad_norm is not None and not self.max_grad_norm > 0:
            raise UsageError(f"d4pg.max_grad_norm must be above 0 or None, got {self.max_grad_norm}")
        if not 0 <= self.discount <= 1:
            raise UsageError(f"d4pg.discount must be between 0 and 1, got {self.discount}")
        if not 0 < self.target_share <= 1:
            raise UsageError(f"d4pg.target_share must be above 0 and at most 1, got {self.target_share}")
        for name in ("noise", "evaluation_envs"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"d4pg.{name} must be at least 0, got {getattr(self, name)}")
