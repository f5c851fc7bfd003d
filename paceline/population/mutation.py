"""How a hyper-parameter mutates: times or divided by a factor, to a value that the configuration allows.

| hyper-parameter | what is multiplied or divided | bounds |
|---|---|---|
| a rate, coefficient or limit | the value | above 0 |
| discount, trace_decay, beta1, beta2 | 1 - value, the reciprocal of a horizon | 0 to 1 - 1e-6 |
| target_share | the value | at most 1 |
| a weight of the reward | the value, which keeps its sign | none |
| an integer | the value, rounded, but changed by at least 1 | at least 1 |

No factor moves a value away from zero. An entropy coefficient, value coefficient or noise of zero, and a discount or
trace_decay of 1, therefore mutate to a fixed value near it (`Range.restart`). A weight of the reward that is zero stays
zero: it is not part of the reward.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from numpy.random import Generator

from paceline.errors import UsageError, closest
from paceline.population.config import PBTConfig

REWARD = "reward."
"""Paths that begin with this are weights of the environment's reward."""
PPO_TUNED = ("optimizer.learning_rate", "ppo.entropy_coef", "optimizer.beta1")
D4PG_TUNED = ("d4pg.actor_rate", "d4pg.critic_rate", "d4pg.noise")
LEAST = 1e-6
"""The least difference from 1 of a bounded value."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """How one hyper-parameter mutates."""

    on_complement: bool = False
    """Whether 1 - value is multiplied, instead of the value."""
    most: float = math.inf
    """The largest allowed value."""
    restart: float | None = None
    """What a zero becomes, or a 1 - value that is zero. None: it stays zero."""


_COMPLEMENT = Range(on_complement=True, most=1 - LEAST, restart=1e-3)
_RANGES = {
    "ppo.discount": _COMPLEMENT,
    "ppo.trace_decay": _COMPLEMENT,
    "optimizer.beta1": _COMPLEMENT,
    "optimizer.beta2": _COMPLEMENT,
    "d4pg.discount": _COMPLEMENT,
    "d4pg.target_share": Range(most=1.0),
    "ppo.entropy_coef": Range(restart=1e-3),
    "ppo.value_coef": Range(restart=1e-2),
    "d4pg.noise": Range(restart=1e-2),
}


def tuned_paths(settings: PBTConfig, allowed: Collection[str]) -> tuple[str, ...]:
    """The hyper-parameters that mutate. `allowed` has the paths of all that can change during the run."""
    for path in settings.tuned:
        if path not in allowed:
            raise UsageError(
                f"pbt.tuned: {path!r} cannot change during this run{closest(path, allowed)}; "
                f"allowed: {', '.join(allowed)}"
            )
    defaults = (path for path in (*PPO_TUNED, *D4PG_TUNED, *_rewards(allowed)) if path in allowed)
    return tuple(dict.fromkeys(settings.tuned or defaults))


def mutated(path: str, value: float, settings: PBTConfig, generator: Generator) -> float:
    """The value after a round: with probability `mutation_rate`, times or divided by `factor`."""
    happens, grows = generator.random(2) < (settings.mutation_rate, 0.5)
    return moved(path, value, settings.factor if grows else 1 / settings.factor) if happens else value


def spread_out(
    values: Mapping[str, float], count: int, settings: PBTConfig, generator: Generator
) -> list[dict[str, float]]:
    """The first hyper-parameters of `count` members: `values` times factors between 1 / spread and spread.

    The range of the factors is divided into `count` equal parts of its logarithm. Each part gives one member its
    factor, so that a small population covers the range, too.
    """
    members: list[dict[str, float]] = [{} for _ in range(count)]
    for path, value in values.items():
        exponents = 2 * (generator.permutation(count) + generator.random(count)) / count - 1
        start = moved(path, value, settings.factor) if _is_zero(path, value) else value
        for member, exponent in zip(members, exponents.tolist(), strict=True):
            member[path] = moved(path, start, settings.spread**exponent)
    return members


def moved(path: str, value: float, factor: float) -> float:
    """The value after a mutation by `factor`. The result is allowed if the value is."""
    if not math.isfinite(value):
        raise ValueError(f"{path} is {value}, which cannot mutate")
    if isinstance(value, int):
        return max(1, value + (max(1, _change(value, factor)) if factor > 1 else min(-1, _change(value, factor))))
    limits = _RANGES.get(path, Range())
    scaled = 1 - value if limits.on_complement else value
    scaled = limits.restart or 0.0 if _is_zero(path, value) else scaled * factor
    return min(max(1 - scaled, 0.0) if limits.on_complement else scaled, limits.most)


def _is_zero(path: str, value: float) -> bool:
    """Whether no factor would move the value."""
    return value == (1 if _RANGES.get(path, Range()).on_complement else 0)


def _change(value: int, factor: float) -> int:
    return round(value * factor) - value


def _rewards(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if path.startswith(REWARD)]
