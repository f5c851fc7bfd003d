"""The configuration of a run. `config.json` in a run folder holds it.

There is one `Config` for all systems, and it has all sections. A system reads some of them (`paceline.systems`). The
other sections keep their defaults, and `config.json` does not have them.

The file is read by code of our own and not by a validation library, because loading drops settings of other systems and
of earlier versions, and because an error is one line that names the setting and what is allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from paceline.accel.config import ComputeConfig
from paceline.checks import as_number, convert_numbers, field_types, require_above_0, require_at_least, require_choices
from paceline.collect.config import BatchingConfig, RemoteConfig
from paceline.distributed.config import GroupConfig, PreemptionConfig, require_device
from paceline.errors import UsageError, closest
from paceline.experience.config import LimiterConfig, ReplayConfig
from paceline.files import replace_text
from paceline.learner.config import D4PGConfig, OnNonFinite, OptimizerConfig, PPOConfig, named_parts_of_learning
from paceline.nets.config import ControlConfig, PolicyConfig, named_classes, named_parts
from paceline.pool.config import PoolConfig
from paceline.population.config import LeagueConfig, PBTConfig, PopulationConfig, named_code
from paceline.schedule.config import APPOConfig, VERConfig
from paceline.signatures import sign
from paceline.systems import SYSTEMS, System, readers, unread_by

Kind = TypeVar("Kind")
RETIRED = ("batching.inference_workers", "remote.max_restarts")
"""Settings that earlier versions had and wrote to config.json. Loading drops them."""
RENAMED = {"appo": {"beside": "concurrent"}, "d4pg": {"beside": "concurrent"}}
"""By section: old names of settings in config.json, and their present names."""


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When checkpoints are written, and how many are kept."""

    seconds: float = 120.0
    """Seconds between two checkpoints. A run also writes one at its end."""
    keep: int = 3
    """Number of latest checkpoints to keep. The checkpoint with the best return is kept in addition."""

    def __post_init__(self) -> None:
        require_at_least(self, "checkpoint", 1, "keep")
        require_above_0(self, "checkpoint", "seconds")


def _unknown_settings_are_named(kind: type[Kind]) -> type[Kind]:
    """A dataclass that refuses unknown settings with a `UsageError`, which names where a setting of this name is."""
    made: Any = kind
    known, make = [one.name for one in dataclasses.fields(made)], made.__init__

    @functools.wraps(make)
    def init(self: Kind, **settings: Any) -> None:
        for name in settings.keys() - set(known):
            inside = [setting for setting in _defaults() if setting.endswith(f".{name}")]
            hint = "" if inside else closest(name, known)
            allowed = ", ".join(inside or known)
            raise UsageError(f"a configuration has no setting {name!r}{hint}; allowed: {allowed}")
        make(self, **settings)

    made.__init__ = init
    return kind


@_unknown_settings_are_named
@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that decides what a run does."""

    env: str = "gym:CartPole-v1"
    """The environment: family:name?option=value, or package.module:function for your own. `paceline envs` lists
    them."""
    system: System = "ddppo"
    """The training system. Each system has options of its own."""
    steps: int = 1_000_000
    """Agent steps to train on, summed over all ranks."""
    seconds: float | None = None
    """Stop after this many seconds of training, even if not all steps are done. None: no time limit."""
    rollout_steps: int = 128
    """T: steps of each agent in a rollout. ver collects T times the number of agents, from those that are ready."""
    seed: int = 1
    """Seed of all random numbers."""
    device: str = "auto"
    """Device of the policy: cpu, cuda (each rank has a GPU of its own), cuda:N (GPU number N), or auto (a GPU if there
    is one, otherwise the CPU)."""
    threads: int | None = None
    """PyTorch threads on a CPU, for each thread of the run that computes. None: one for small policies without
    convolutions, a share of the cores for other policies, and all cores for the updates of d4pg."""
    deterministic: bool = False
    """Make runs reproducible to the bit: with the serial pool and with deterministic algorithms only."""
    on_nonfinite: OnNonFinite = "stop"
    """When a loss or a gradient is not finite: stop the run, or skip the gradient step. Ten skipped steps in a row
    stop the run, too."""
    log_seconds: float = 10.0
    """Seconds between two progress lines, when the output is not a terminal."""
    wandb_project: str | None = None
    """Weights & Biases project that also gets the metrics. None: no project."""
    recipe: str = ""
    """The recipe that this configuration began as. Empty if there was none."""
    init_from: str | None = None
    """A run whose weights this run begins with: its folder for the latest checkpoint, FOLDER/checkpoints/NAME with best
    or step_N as the NAME, or the name of a pretrained policy. The other run is only read. None: all weights are new."""
    init: str | None = None
    """With --init-from, the parts to take: encoder, policy, planner, critic, or several, such as encoder+policy. None:
    encoder+policy, and policy for a policy of your own."""
    freeze: str | None = None
    """Parts that are not trained, of those that --init takes: encoder, policy, planner, critic, or several. None:
    everything is trained."""
    pool: PoolConfig = field(default_factory=PoolConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    preemption: PreemptionConfig = field(default_factory=PreemptionConfig)
    population: PopulationConfig = field(default_factory=PopulationConfig)
    pbt: PBTConfig = field(default_factory=PBTConfig)
    league: LeagueConfig = field(default_factory=LeagueConfig)
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
        if not isinstance(self.env, str):
            raise UsageError(
                f"env is {self.env!r}; a Config has an id, such as gym:CartPole-v1; objects are allowed in "
                "train(env=...) and Session(config, env=...)"
            )
        convert_numbers(self)
        require_device(self.device)
        require_choices(self, "")
        require_at_least(self, "", 1, "steps", "rollout_steps", "threads")
        require_at_least(self, "", 0, "seed")
        if self.seed >= 2**63:
            raise UsageError(f"seed must be below 2^63, got {self.seed}")
        require_above_0(self, "", "seconds", "log_seconds")
        for name in ("seconds", "log_seconds"):
            if getattr(self, name) == math.inf:
                none = ", or None for no limit" if name == "seconds" else ""
                raise UsageError(f"{name} is inf; allowed: a finite number{none}")
        self._require_read_settings()
        self._require_parts()
        # Where no row lags, both settings are the same.
        around_update = SYSTEMS[self.system].lags and self.ppo.clip_around == "update"
        if around_update and not self.resolved_ppo.clips_around_update:
            raise UsageError(
                "ppo.clip_around update needs ppo.clip, and ppo.targets vtrace before updates: several ppo.epochs, or "
                "ppo.trace update; otherwise allowed: acting"
            )
        if self.deterministic:
            self._require_determinism()

    def _require_parts(self) -> None:
        """Refuse parts that do not exist, and networks that cannot learn."""
        if self.init is not None and self.init_from is None:
            raise UsageError(f"init {self.init} has no effect without init_from; allowed: --init-from RUN")
        taken, has_planner = self.parts_to_take, self.policy.planner.kind != "none"
        if has_planner and not {"encoder", "policy"} <= set(taken):
            raise UsageError(
                "policy.planner needs a policy to steer; allowed: --init encoder+policy and --init-from RUN, where RUN "
                f"observes {self.policy.planner.goal!r}"
            )
        if SYSTEMS[self.system].family == "d4pg" and not set(self.frozen_parts) <= {"encoder", "policy"}:
            raise UsageError(f"freeze {self.freeze} is not possible under {self.system}; allowed: encoder, or policy")
        if "planner" in self.frozen_parts and not has_planner:
            raise UsageError(f"freeze {self.freeze} needs a planner; allowed: --policy.planner.kind lstm or gru")
        acting = {"policy"} if self.policy.is_own else {"encoder", "policy", *(["planner"] if has_planner else [])}
        if acting <= set(self.frozen_parts):
            raise UsageError(f"freeze {self.freeze} leaves no policy to train; allowed: fewer parts")

    @property
    def parts_to_take(self) -> tuple[str, ...]:
        """The parts of the network that begin with the weights of another run."""
        everything = "policy" if self.policy.is_own else "encoder+policy"
        return named_parts("init", self.init or everything) if self.init_from is not None else ()

    @property
    def frozen_parts(self) -> tuple[str, ...]:
        """The parts of the network that are not trained."""
        return named_parts("freeze", self.freeze)

    def _require_read_settings(self) -> None:
        """Refuse a setting that differs from its default although the system does not read it."""
        for setting, value in leaves(self).items():
            if value != _defaults()[setting] and self.system not in readers(setting):
                others = ", ".join(readers(setting))
                raise UsageError(f"{setting} has no effect under {self.system}; it is read by: {others}")

    def _require_determinism(self) -> None:
        """Refuse what depends on which of two threads or processes is faster."""
        if SYSTEMS[self.system].lags:
            allowed = ", ".join(name for name, spec in SYSTEMS.items() if not spec.lags)
            raise UsageError(
                f"deterministic runs cannot have the system {self.system}: its results depend on timing; "
                f"allowed: {allowed}"
            )
        if self.ver.overlap:
            raise UsageError("deterministic runs cannot have ver.overlap: its results depend on timing")
        if self.remote.actors:
            raise UsageError("deterministic runs cannot have remote.actors: their results depend on timing")
        if self.pool.kind not in ("serial", "tensor", "auto"):
            raise UsageError(
                f"deterministic runs need the serial pool, not {self.pool.kind!r}: the order of steps varies in others"
            )

    @property
    def resolved_ppo(self) -> PPOConfig:
        """The section `ppo`, with `targets` as the system resolves `auto`."""
        if self.ppo.targets != "auto":
            return self.ppo
        return dataclasses.replace(self.ppo, targets=SYSTEMS[self.system].targets)

    def under(self, system: str) -> Config:
        """This configuration under another system. Settings that the new system does not read return to their
        defaults."""
        if system not in SYSTEMS:
            raise UsageError(
                f"system {system!r} does not exist{closest(system, SYSTEMS)}; allowed: {', '.join(SYSTEMS)}"
            )
        return self.from_settings(dataclasses.asdict(self) | {"system": system}, "the configuration")

    def named_code(self) -> dict[str, str]:
        """Options that name classes or functions of the user's own, and their import paths. Training runs this code."""
        of_networks = named_classes(self.policy, self.control)
        of_learning = named_parts_of_learning(self.ppo, self.optimizer)
        return of_networks | of_learning | named_code(self.population, self.league)

    def settings(self) -> dict[str, Any]:
        """All settings that the system reads, as nested dictionaries."""
        return _without(dataclasses.asdict(self), unread_by(self.system))

    def save(self, path: Path) -> None:
        """Replace the file as a whole, and sign it as this user's own."""
        replace_text(path, json.dumps(self.settings(), indent=2) + "\n")
        sign(path)

    @classmethod
    def load(cls, path: Path) -> Config:
        """Read a file that `save` wrote, now or in an earlier version, which wrote the settings of all systems."""
        try:
            data = json.loads(path.read_text())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise UsageError(f"{path} is not a configuration: {error}") from error
        return cls.from_settings(data, str(path))

    @classmethod
    def from_settings(cls, data: Any, source: str) -> Config:
        """From nested dictionaries. Settings that the system does not read, and retired ones, are dropped."""
        if isinstance(data, dict):
            system = data.get("system", cls.system)
            unread = unread_by(system) if isinstance(system, str) and system in SYSTEMS else []
            data = _renamed(_without(data, [*RETIRED, *unread]))
        return _build(cls, data, source)


def leaves(settings: Any, name: str = "") -> dict[str, Any]:
    """Every setting by its dotted name. `name` is the name of `settings` itself."""
    if not dataclasses.is_dataclass(settings):
        return {name: settings}
    found: dict[str, Any] = {}
    for one in dataclasses.fields(settings):
        found |= leaves(getattr(settings, one.name), f"{name}.{one.name}" if name else one.name)
    return found


@functools.cache
def _defaults() -> dict[str, Any]:
    """The default of every setting, by its dotted name. `Config()` cannot tell them: it is checked against them."""
    found: dict[str, Any] = {}
    for one in dataclasses.fields(Config):
        default = one.default if one.default_factory is dataclasses.MISSING else one.default_factory()
        found |= leaves(default, one.name)
    return found


def _without(data: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Nested dictionaries without the entries with these dotted names."""
    kept = dict(data)
    for name in names:
        first, _, rest = name.partition(".")
        if not rest:
            kept.pop(first, None)
        elif isinstance(kept.get(first), dict):
            kept[first] = _without(kept[first], [rest])
    return kept


def _renamed(data: dict[str, Any]) -> dict[str, Any]:
    sections = {name: data[name] for name in RENAMED if isinstance(data.get(name), dict)}
    return data | {
        name: {RENAMED[name].get(setting, setting): value for setting, value in section.items()}
        for name, section in sections.items()
    }


def _build(kind: type, data: Any, where: str) -> Any:
    """A dataclass from nested dictionaries. Errors name an unknown field, or a value of a wrong type."""
    if not isinstance(data, dict):
        raise UsageError(f"{where}: expected an object with the fields of {kind.__name__}, got {data!r}")
    hints = field_types(kind)
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
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(arguments[0], item, where) for item in value)
    if hint in (int, float):
        return as_number(hint, value, where)
    if not isinstance(value, origin or hint):
        raise UsageError(f"{where} is {value!r}; allowed: {hint.__name__}")
    return value
