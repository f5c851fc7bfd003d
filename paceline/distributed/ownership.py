"""`Ownership`: which ranks train which policies. By default every rank trains all of them.

Legend: R ranks, P policies.

| spread | what rank r trains | which ranks average the gradients of policy p |
|---|---|---|
| no | all policies | all |
| yes, P >= R | the policies p with p modulo R = r | none: one rank trains it |
| yes, P < R | policy r modulo P | the ranks r with r modulo P = p |
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from paceline.distributed.gather import broadcast
from paceline.distributed.runtime import Group
from paceline.errors import UsageError


@dataclass(frozen=True)
class Ownership:
    """The ranks of every policy, as one rank sees them."""

    all_ranks: Group
    group: Group
    """The ranks that train the same policies as this one. They average gradients."""
    ranks: tuple[tuple[int, ...], ...]
    """By policy: the ranks that train it."""

    @classmethod
    def of(cls, group: Group, policies: int, *, spread: bool) -> Ownership:
        """All ranks call it together, once."""
        if not spread:
            return cls(group, group, (tuple(range(group.size)),) * policies)
        if group.size == 1:
            raise UsageError(
                "population.spread needs several ranks; allowed: paceline train --ranks 2 or more, torchrun, srun, or "
                "--population.no-spread"
            )
        ranks = tuple(tuple(range(policy % group.size, group.size, policies)) for policy in range(policies))
        return cls(group, group.part(sorted(set(ranks))), ranks)

    @property
    def num_policies(self) -> int:
        return len(self.ranks)

    @property
    def own(self) -> tuple[int, ...]:
        """The policies that this rank trains."""
        return tuple(policy for policy, ranks in enumerate(self.ranks) if self.all_ranks.rank in ranks)

    @property
    def copies(self) -> tuple[int, ...]:
        """The policies that only other ranks train."""
        return tuple(policy for policy, ranks in enumerate(self.ranks) if self.all_ranks.rank not in ranks)

    def largest_share(self, policies: Iterable[int]) -> int:
        """How many of `policies` a rank trains, at most. It is the same on all ranks."""
        return max(Counter(rank for policy in policies for rank in self.ranks[policy]).values())

    @property
    def is_spread(self) -> bool:
        """Whether some rank does not train all policies. It is the same on all ranks."""
        return self.group.size < self.all_ranks.size

    @property
    def speaks_for(self) -> tuple[int, ...]:
        """The policies whose state this rank gives to others. Each policy has one such rank."""
        return tuple(policy for policy, ranks in enumerate(self.ranks) if self.all_ranks.rank == ranks[0])

    def speaker(self, policy: int) -> int:
        """The rank that gives the state of `policy` to others."""
        return self.ranks[policy][0]

    def from_owner(self, policy: int, make: Callable[[], Any]) -> Any:
        """What `make` returns on a rank that trains `policy`. If policies are spread, all ranks call this together,
        and it is sent to all."""
        if not self.is_spread:
            return make()
        source = self.speaker(policy)
        return broadcast(self.all_ranks, make() if self.all_ranks.rank == source else None, source)
