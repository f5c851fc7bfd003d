"""A run, completely described. `config.json` in a run's folder is this, and reads back as this."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from paceline.accel.config import ComputeConfig
from paceline.collect.config import BatchingConfig, RemoteConfig
from paceline.distributed.config import GroupConfig, PreemptionConfig
from paceline.errors import UsageError, closest
from paceline.experience.config import LimiterConfig, ReplayConfig
from paceline.files import replace_text
from paceline.learner.config import D4PGConfig, OnNonFinite, OptimizerConfig, PPOConfig
from paceline.nets.config import ControlConfig, PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.schedule.config import APPOConfig, VERConfig
from paceline.signatures import sign

System = Literal["ddppo", "ver", "appo", "d4pg"]


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    seconds: float = 120.0
    """A checkpoint at least this often, and one at the end."""
    keep: int = 3
    """The latest of them that are kept; the best one is kept besides."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise UsageError(f"checkpoint.keep must be at least 1, got {self.keep}")
        if not self.seconds > 0:
            raise UsageError(f"checkpoint.seconds must be above 0, got {self.seconds}")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides what a run does."""

    env: str = "gym:CartPole-v1"
    """The environment: family:name?option=value, or package.module:function (see `paceline envs`)."""
    system: System = "ddppo"
    """Which of the training systems turns the wheels."""
    steps: int = 1_000_000
    """Agent steps to train on, over all ranks."""
    seconds: float | None = None
    """Stop after this many seconds of training, if the steps are not done by then."""
    rollout_steps: int = 128
    """T: steps of each slot between two updates."""
    seed: int = 1
    """Everything random follows from it."""
    device: Literal["cpu", "cuda", "auto"] = "auto"
    """Where the policy lives; auto takes a GPU if there is one."""
    threads: int | None = None
    """PyTorch's threads on a CPU, of each thread that computes; by default one for small policies without convolutions,
    and a share of the cores for others; d4pg has all cores for its updates."""
    deterministic: bool = False
    """Bit-reproducible runs: the serial pool, and deterministic algorithms only."""
    on_nonfinite: OnNonFinite = "stop"
    """When a gradient or a loss is not finite: end the run, or skip that gradient step. Ten skipped steps in a row end the run, too."""
    log_seconds: float = 10.0
    """Without a terminal: seconds between two lines that say where the run is."""
    wandb_project: str | None = None
    """Also report to this Weights & Biases project."""
    recipe: Annotated[str, tyro.conf.Suppress] = ""
    """The recipe that this configuration began as; empty if there was none."""
    pool: PoolConfig = field(default_factory=PoolConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    preemption: PreemptionConfig = field(default_factory=PreemptionConfig)
    ver: VERConfig = field(default_factory=VERConfig)
    appo: APPOConfig = field(default_factory=APPOConfig)
    control: ControlConfig = field(default_factory=ControlConfig)
    d4pg: D4PGConfig = field(default_factory=D4PGConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    limiter: LimiterConfig = field(default_factory=LimiterConfig)
    remote: RemoteConfig = field(default_factory=RemoteConfig)
    group: GroupConfig = field(default_factory=GroupConfig)
    batching: BatchingConfig = field(default_factory=BatchingConfig)
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "rollout_steps"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"seconds must be above 0, got {self.seconds}")
        if not self.log_seconds > 0:
            raise UsageError(f"log_seconds must be above 0, got {self.log_seconds}")
        if self.seed < 0:
            raise UsageError(f"seed must be at least 0, got {self.seed}")
        if self.deterministic and self.system == "ver" and self.ver.overlap:
            raise UsageError(
                "deterministic runs cannot have ver.overlap: what is decided would depend on who is faster"
            )
        if self.deterministic and self.system == "appo":
            raise UsageError(
                "deterministic runs cannot have the system appo: it depends on who is faster; allowed: ddppo, ver"
            )
        # In the other systems no row is behind, and there is no difference.
        if self.system == "appo" and self.ppo.clip_around == "update" and not self.resolved_ppo.clips_around_update:
            raise UsageError(
                "ppo.clip_around update needs ppo.clip, and ppo.targets vtrace before updates: several ppo.epochs, or ppo.trace update; "
                "otherwise allowed: acting"
            )
        if self.remote.actors and (self.system != "d4pg" or self.deterministic):
            raise UsageError("remote.actors are for runs of the system d4pg that are not deterministic")
        if self.deterministic and self.pool.kind not in ("serial", "tensor", "auto"):
            raise UsageError(
                f"deterministic runs need the serial pool, not {self.pool.kind!r}: the order of others varies"
            )

    @property
    def resolved_ppo(self) -> PPOConfig:
        """`ppo`, with what `auto` stands for under this system."""
        if self.ppo.targets != "auto":
            return self.ppo
        return dataclasses.replace(self.ppo, targets="vtrace" if self.system == "appo" else "gae")

    def save(self, path: Path) -> None:
        """Write it as a whole or not at all, signed as this user's own."""
        replace_text(path, json.dumps(dataclasses.asdict(self), indent=2) + "\n")
        sign(path)

    @classmethod
    def load(cls, path: Path) -> Config:
        try:
            data = json.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{path} is not a configuration: {error}") from error
        return _build(cls, data, str(path))


def _build(kind: type, data: Any, where: str) -> Any:
    """A dataclass from nested dictionaries; what is unknown or of the wrong kind is named."""
    if not isinstance(data, dict):
        raise UsageError(f"{where}: expected an object with the fields of {kind.__name__}, got {data!r}")
    hints = typing.get_type_hints(kind)
    known = {f.name for f in dataclasses.fields(kind)}
    for name in data:
        if name not in known:
            raise UsageError(
                f"{where}: there is no field {name!r}{closest(name, known)}; allowed: {', '.join(sorted(known))}"
            )
    return kind(**{name: _value(hints[name], value, f"{where}: {name}") for name, value in data.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, where)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        return _value(next(a for a in arguments if a is not type(None)), value, where)
    if origin is Literal:
        if value not in arguments:
            raise UsageError(f"{where} is {value!r}; allowed: {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return tuple(_value(arguments[0], item, where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise UsageError(f"{where} is {value!r}; allowed: {hint.__name__}")
    return value
