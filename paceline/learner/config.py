"""Settings of the learners. Free of PyTorch: the command line reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from paceline.checks import require_above_0, require_at_least, require_choices, require_share
from paceline.errors import UsageError
from paceline.own_code import check_choice, is_importable, write_paths

OnNonFinite = Literal["stop", "skip"]
RATE_SCHEDULES = ("constant", "linear", "cosine")
AUXILIARIES = ("none", "cpca")
TERMS = ("none",)


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """The Adam optimiser of the PPO systems."""

    learning_rate: float = 2.5e-4
    """Learning rate at the start of the run."""
    schedule: str = "constant"
    """How the learning rate falls to 0 by the end of the run: constant (it does not fall), linear, cosine, or
    package.module:function for your own. The end is --steps or --seconds, the earlier of both."""
    eps: float = 1e-5
    """Adam's epsilon."""
    beta1: float = 0.9
    """Adam's decay rate of the mean gradient."""
    beta2: float = 0.999
    """Adam's decay rate of the squared gradient."""
    max_grad_norm: float | None = 0.5
    """Gradients with a larger norm are scaled down to this norm. None: no limit."""

    def __post_init__(self) -> None:
        write_paths(self, "schedule")
        check_choice("optimizer.schedule", self.schedule, RATE_SCHEDULES, "function")
        require_above_0(self, "optimizer", "learning_rate", "max_grad_norm")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise UsageError(f"optimizer.{name} must be at least 0 and below 1, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class AuxiliaryConfig:
    """An auxiliary loss, which has weights of its own."""

    kind: str = "none"
    """none: no auxiliary loss. cpca: CPC|A, which predicts from a policy's memory what the agent sees after its next
    actions. package.module:Class: a loss of your own."""
    weight: float = 0.1
    """Weight of the auxiliary loss."""
    steps: int = 20
    """The largest number of steps to predict ahead, within the same episode."""
    negatives: int = 20
    """Observations of other rows, from which the classifier has to tell each true observation."""
    share: float = 0.1
    """Share of the rows to predict from. Neighbouring rows teach nearly the same, so a small share saves time."""
    hidden: int = 512
    """Units of the GRU over the actions, and of the classifier."""

    def __post_init__(self) -> None:
        write_paths(self, "kind")
        check_choice("ppo.auxiliary.kind", self.kind, AUXILIARIES)
        require_at_least(self, "ppo.auxiliary", 1, "steps", "negatives", "hidden")
        require_share(self, "ppo.auxiliary", "share", positive=True)
        if not self.weight > 0:
            raise UsageError(
                f"ppo.auxiliary.weight must be above 0, got {self.weight}; kind none switches the loss off"
            )


@dataclass(frozen=True, kw_only=True)
class PPOConfig:
    """The update of the PPO systems."""

    epochs: int = 2
    """Passes over each rollout."""
    minibatches: int = 2
    """Gradient steps per pass."""
    discount: float = 0.99
    """Discount factor gamma per step."""
    trace_decay: float = 0.95
    """Lambda of generalized advantage estimation (DD-PPO's tau) and of V-trace."""
    targets: Literal["auto", "gae", "vtrace"] = "auto"
    """Advantage estimator. gae: generalized advantage estimation. vtrace: V-trace, which corrects for the updates
    since a row was collected. auto: vtrace under appo, gae under the other systems."""
    trace: Literal["auto", "update", "minibatch"] = "auto"
    """When V-trace re-evaluates the policy. update: on all rows, before each update. minibatch: in every mini-batch,
    which then holds whole streams, as in Sample Factory. auto: update if there are several epochs, otherwise
    minibatch."""
    max_rho: float = 1.0
    """V-trace's rho-bar: upper bound of the importance weights of the value targets. Without a clip, or with
    clip_around update, it also bounds the weights of the rows."""
    max_c: float = 1.0
    """V-trace's c-bar: upper bound of the importance weights that carry corrections back in time."""
    rho_in_advantage: bool = False
    """Multiply V-trace's advantages by rho, as Sample Factory's code does. The importance weight then counts twice,
    because the probability ratio (or the weight of the row) already has it."""
    clip: float | None = 0.2
    """Epsilon: how far the probability ratio may be from 1 before its gradient is cut off. None: no clipping, which is
    the plain policy gradient, weighted by the ratio up to max_rho."""
    clip_around: Literal["acting", "update"] = "acting"
    """The policy in the denominator of the clipped ratio. acting: the policy that chose the action, as in PPO and in
    Sample Factory. update: the policy before the update; V-trace's rho then weighs the rows. The two differ only for
    rows that are some updates old, under appo, and update needs V-trace before updates. clip_fraction, approx_kl and
    target_kl use the same ratio."""
    clip_inverse: bool = False
    """Clip the ratio to [1 / (1 + clip), 1 + clip], as Sample Factory does, instead of [1 - clip, 1 + clip]."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    value_clip: float | None = None
    """The largest change of a value in one update. None: no limit."""
    entropy_coef: float = 0.01
    """Weight of the entropy bonus. With entropy_target, its initial value."""
    entropy_target: float | None = None
    """Learn the weight of the entropy bonus, so that the policy's entropy stays at or above this many nats, summed
    over the components of an action. VER uses 0 for Gaussian actions, whose entropy can be negative. None: a constant
    weight."""
    entropy_bounds: tuple[float, float] = (1e-4, 1.0)
    """Bounds of a learned weight of the entropy bonus."""
    term: str = "none"
    """A further term of the loss: none, or package.module:function for your own, also a class."""
    term_coef: float = 1.0
    """Weight of that term."""
    normalize_advantage: bool = False
    """Normalise advantages to mean 0 and standard deviation 1 over the rollouts of all ranks. DD-PPO does not."""
    normalize_returns: bool = False
    """Divide rewards by the running standard deviation of the discounted returns of all ranks."""
    target_kl: float | None = None
    """End the passes over a rollout once the approximate KL divergence of the policy is above this. None: never."""
    sequences: Literal["auto", "packed", "columns"] = "auto"
    """How mini-batches of a recurrent policy are formed. packed: packed sequences of single episodes. columns: all
    steps of some slots, which a CUDA graph can record. auto: columns where updates are recorded, and on a CPU for an
    LSTM of at least 256 units with at least four columns in a mini-batch; otherwise packed."""
    auxiliary: AuxiliaryConfig = field(default_factory=AuxiliaryConfig)

    def __post_init__(self) -> None:
        require_choices(self, "ppo")
        write_paths(self, "term")
        check_choice("ppo.term", self.term, TERMS, "function")
        require_at_least(self, "ppo", 1, "epochs", "minibatches")
        require_share(self, "ppo", "discount", "trace_decay")
        require_above_0(self, "ppo", "clip", "max_rho", "max_c")
        low, high = self.entropy_bounds
        if not 0 < low <= high:
            raise UsageError(f"ppo.entropy_bounds must be above 0 and in rising order, got {low} and {high}")
        if self.entropy_target is not None and not low <= self.entropy_coef <= high:
            raise UsageError(
                f"ppo.entropy_coef is {self.entropy_coef}; with ppo.entropy_target it has to start within "
                f"ppo.entropy_bounds, between {low} and {high}"
            )

    @property
    def has_own_losses(self) -> bool:
        """Whether the user's own code computes a part of the loss."""
        return self.term not in TERMS or self.auxiliary.kind not in AUXILIARIES

    @property
    def ratio_bounds(self) -> tuple[float, float]:
        """Bounds of the clipped probability ratio."""
        assert self.clip is not None
        return (1 / (1 + self.clip) if self.clip_inverse else 1 - self.clip), 1 + self.clip

    @property
    def is_traced(self) -> bool:
        """Whether V-trace estimates the advantages. `Config.resolved_ppo` has replaced `auto` before this is read."""
        return self.targets == "vtrace"

    @property
    def traces_minibatches(self) -> bool:
        """Whether V-trace re-evaluates the policy in every mini-batch."""
        return self.is_traced and (self.trace == "minibatch" or (self.trace == "auto" and self.epochs == 1))

    @property
    def clips_around_update(self) -> bool:
        """Whether ratios are relative to the policy before the update, which V-trace has evaluated."""
        return self.clip_around == "update" and self.clip is not None and self.is_traced and not self.traces_minibatches


def named_parts_of_learning(ppo: PPOConfig, optimizer: OptimizerConfig) -> dict[str, str]:
    """Options that name a class or function of the user's own, and those names. Learning runs this code."""
    options = {
        "ppo.auxiliary.kind": ppo.auxiliary.kind,
        "ppo.term": ppo.term,
        "optimizer.schedule": optimizer.schedule,
    }
    return {option: name for option, name in options.items() if is_importable(name)}


@dataclass(frozen=True, kw_only=True)
class D4PGConfig:
    """The update and the exploration of d4pg."""

    batch: int = 256
    """M: transitions per update."""
    steps: int = 5
    """N: steps that one transition covers."""
    discount: float = 0.99
    """Discount factor gamma per step."""
    noise: float = 0.3
    """Epsilon: standard deviation of the Gaussian noise on actions, which are between -1 and 1."""
    lowest_noise: float | None = None
    """Each stream draws its own epsilon between this and noise, anew in every episode, as in FastTD3. None: epsilon is
    the same for all."""
    actor_rate: float = 1e-4
    """Learning rate of the policy."""
    critic_rate: float = 1e-4
    """Learning rate of the critic."""
    weight_decay: float = 0.0
    """AdamW's weight decay: a step also shrinks the weights by this share of the learning rate. 0: plain Adam."""
    target_period: int = 100
    """t_target: updates between two copies of the weights to the target networks."""
    target_share: float = 1.0
    """Share of the new weights in such a copy. With a period of 1, this is Polyak averaging."""
    max_action_gradient: float | None = 1.0
    """Gradients of the value with respect to the action are scaled down to this norm, as in Acme. None: no limit."""
    max_grad_norm: float | None = None
    """Gradients of the weights are scaled down to this norm. None: no limit."""
    random_shift: int = 0
    """Images are shifted at random by up to this many pixels in every update, as in DrQ-v2, which has 4. 0: never."""
    actors_period: int = 1
    """t_actors: updates between two publications of the weights to the actors."""
    evaluation_envs: int = 1
    """Environments that act without noise and do not add to the replay; evaluation_return reports their returns. At
    most one environment in four is used for this."""
    concurrent: bool = True
    """Collect and learn at the same time. Deterministic runs and batched simulators always collect and learn in
    turn."""

    def __post_init__(self) -> None:
        require_at_least(self, "d4pg", 1, "batch", "steps", "target_period", "actors_period")
        require_at_least(self, "d4pg", 0, "noise", "weight_decay", "random_shift", "evaluation_envs")
        if self.lowest_noise is not None and self.lowest_noise < 0:
            raise UsageError(f"d4pg.lowest_noise must be at least 0, got {self.lowest_noise}")
        require_above_0(self, "d4pg", "actor_rate", "critic_rate", "max_grad_norm", "max_action_gradient")
        require_share(self, "d4pg", "discount")
        require_share(self, "d4pg", "target_share", positive=True)
