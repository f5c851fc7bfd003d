"""Mappings: which policy plays which agent of a match.

Legend: M matches that begin, A agents of an environment, P policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.collect.policy_assignment import Draw
from paceline.errors import UsageError
from paceline.pool.protocol import PoolSpec
from paceline.population.config import PopulationConfig

UserMapping = Callable[[int, Sequence[str], np.random.Generator], Sequence[int]]
"""Of the user's own: (environment, names of its agents, random numbers) -> the policy of each agent."""


def make_draw(config: PopulationConfig, spec: PoolSpec) -> Draw:
    """The mapping that `config` names."""
    policies, agents = config.policies, spec.agents_per_env
    if config.mapping == "random":
        return lambda envs, generator: generator.integers(policies, size=(len(envs), agents))
    if config.mapping == "agent":
        fixed = np.arange(agents) % policies
        return lambda envs, generator: np.tile(fixed, (len(envs), 1))
    raise UsageError(f"population.mapping {config.mapping!r} does not exist")


def checked(found: Any, names: Sequence[str], policies: int, source: str) -> np.ndarray:
    """[A]: what a user's mapping returned for one match. Refused unless it names a policy for each agent."""
    numbers = np.asarray(found)
    if numbers.shape != (len(names),) or numbers.dtype.kind not in "iu":
        raise UsageError(f"{source} must return one policy number for each of the agents {list(names)}, got {found!r}")
    wrong = numbers[(numbers < 0) | (numbers >= policies)]
    if len(wrong):
        raise UsageError(f"{source} returned the policy {wrong[0]}; allowed: 0 to {policies - 1}")
    return numbers
