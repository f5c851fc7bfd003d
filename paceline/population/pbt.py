"""The rules of population-based training, over plain numbers (Sample Factory, appendix A.3.1).

Members are ranked by their objectives. The worst 70 % mutate. The worst 30 % first take weights and hyper-parameters
of one of the best 30 %, if that member is ahead by the required gap. A population in one run applies `plan_round` to
all members at once. A population of whole runs applies `plan_member`: each run decides about itself.

| members | replaced at most | mutated |
|---|---|---|
| 1 | 0 | 0 |
| 2 | 1 | 1 |
| 3 | 1 | 2 |
| 4 | 1 | 3 |
| 8 | 2 | 6 |

Shares are rounded to the nearest number of members. Members without an objective have not finished an episode yet: they
are left as they are, and are donors to nobody. Members with equal objectives are ranked at random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from paceline.errors import UsageError
from paceline.population.config import PBTConfig
from paceline.population.mutation import mutated


@dataclass(frozen=True, kw_only=True)
class Member:
    """One policy of a population, as the rules see it."""

    name: str
    objective: float | None
    """Mean over its latest episodes; None before the first one has ended."""
    hyperparameters: Mapping[str, float]
    """The tuned hyper-parameters, by path."""
    step: int = 0
    """The step of its run at which it had this objective."""

    def __post_init__(self) -> None:
        require_rankable(self.name, self.objective)


def require_rankable(name: str, objective: float | None) -> None:
    """Refuse an objective that is not finite."""
    if objective is not None and not math.isfinite(objective):
        raise UsageError(
            f"the objective of {name} is {objective}, which cannot be ranked; choose a pbt.objective that is always "
            "finite"
        )


@dataclass(frozen=True, kw_only=True)
class Change:
    """What a round decides for one member."""

    member: str
    objective: float | None
    donor: str | None
    """The member whose weights and hyper-parameters it takes; None: it keeps its own."""
    donor_objective: float | None
    donor_step: int | None
    before: dict[str, float]
    after: dict[str, float]
    """Its hyper-parameters before and after the round, by path."""

    @property
    def is_any(self) -> bool:
        """Whether anything changes."""
        return self.donor is not None or self.before != self.after


def plan_round(members: Sequence[Member], settings: PBTConfig, generator: Generator) -> list[Change]:
    """One round over all members, in their order. All changes refer to the state before the round."""
    groups = Groups.of(members, settings, generator)
    return [_plan(member, groups, settings, generator) for member in members]


def plan_member(name: str, members: Sequence[Member], settings: PBTConfig, generator: Generator) -> Change:
    """The change of one member in a round with the others."""
    groups = Groups.of(members, settings, generator)
    return _plan(next(member for member in members if member.name == name), groups, settings, generator)


def round_generator(seed: int, number: int) -> Generator:
    """The random numbers of one round. They depend on nothing else, so a resumed run draws the same ones."""
    return np.random.default_rng([seed, number])


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The members with objectives, by rank."""

    best: list[Member]
    """Donors."""
    replaced: set[str]
    """Names of the members that may be replaced. None of them is a donor."""
    mutated: set[str]

    @classmethod
    def of(cls, members: Sequence[Member], settings: PBTConfig, generator: Generator) -> Groups:
        known = [member for member in members if member.objective is not None]
        shuffled = [known[index] for index in generator.permutation(len(known))]
        ranked = sorted(shuffled, key=_objective, reverse=True)
        count = len(ranked)
        exchanged = 0 if settings.replaced_share == 0 else max(1, _share(settings.replaced_share, count))
        exchanged = min(exchanged, count // 2)
        changed = min(_share(settings.mutated_share, count), max(0, count - 1))
        return cls(
            best=ranked[:exchanged],
            replaced={member.name for member in ranked[count - exchanged :]},
            mutated={member.name for member in ranked[count - changed :]},
        )


def _plan(member: Member, groups: Groups, settings: PBTConfig, generator: Generator) -> Change:
    donor = _donor(member, groups, settings, generator) if member.name in groups.replaced else None
    source = member if donor is None else donor
    after = dict(source.hyperparameters)
    if member.name in groups.mutated:
        after = {path: mutated(path, value, settings, generator) for path, value in after.items()}
    return Change(
        member=member.name,
        objective=member.objective,
        donor=None if donor is None else donor.name,
        donor_objective=None if donor is None else donor.objective,
        donor_step=None if donor is None else donor.step,
        before=dict(member.hyperparameters),
        after=after,
    )


def _donor(member: Member, groups: Groups, settings: PBTConfig, generator: Generator) -> Member | None:
    """One of the best at random. None if that one is not far enough ahead."""
    donor = groups.best[generator.integers(len(groups.best))]
    gap = _objective(donor) - _objective(member)
    return donor if gap > 0 and gap >= settings.min_gap else None


def _objective(member: Member) -> float:
    assert member.objective is not None
    return member.objective


def _share(share: float, count: int) -> int:
    """That share of `count`, rounded to the nearest number; halves are rounded up."""
    return math.floor(share * count + 0.5 + 1e-9)
