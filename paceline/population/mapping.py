"""Mappings: which policy plays which agent of a match.

Legend: M matches that begin, A agents of an environment, P policies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.collect.policy_assignment import Draw
from paceline.envs.user import find
from paceline.errors import UsageError
from paceline.pool.protocol import PoolSpec
from paceline.population.config import PopulationConfig

UserFunction = Callable[[int, Sequence[str], np.random.Generator], Sequence[int]]
"""Of the user's own: environment, names of its agents, random numbers -> the policy of each agent."""


def make_draw(config: PopulationConfig, spec: PoolSpec) -> Draw:
    """The mapping that `config` names."""
    if config.mapping == "random":
        return RandomMapping(config.policies, spec.agents_per_env)
    if config.mapping == "agent":
        return AgentMapping(config.policies, spec.agents_per_env)
    module, _, attribute = config.mapping.partition(":")
    return UserMapping(find(module, attribute, f"population.mapping {config.mapping}"), config, spec)


class RandomMapping:
    """Sample Factory's: each agent of each match gets any policy."""

    def __init__(self, policies: int, agents: int) -> None:
        self._policies, self._agents = policies, agents

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return generator.integers(self._policies, size=(len(envs), self._agents))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class AgentMapping:
    """Each agent always has the same policy: agent number modulo number of policies."""

    def __init__(self, policies: int, agents: int) -> None:
        self._fixed = np.arange(agents) % policies

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.tile(self._fixed, (len(envs), 1))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class UserMapping:
    """A function of the user's own."""

    def __init__(self, function: UserFunction, config: PopulationConfig, spec: PoolSpec) -> None:
        self._function, self._config = function, config
        self._agents = spec.agents or tuple(f"agent_{agent}" for agent in range(spec.agents_per_env))

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.stack([self._checked(self._function(env, self._agents, generator)) for env in envs.tolist()])

    def _checked(self, found: Any) -> np.ndarray:
        """[A]: what the function returned for one match. Refused unless it names a policy for each agent."""
        source, numbers = f"population.mapping {self._config.mapping}", np.asarray(found)
        if numbers.shape != (len(self._agents),) or numbers.dtype.kind not in "iu":
            raise UsageError(
                f"{source} must return a policy number for each of the agents {', '.join(self._agents)}, got {found!r}"
            )
        wrong = numbers[(numbers < 0) | (numbers >= self._config.policies)]
        if len(wrong):
            raise UsageError(f"{source} returned policy {wrong[0]}; allowed: 0 to {self._config.policies - 1}")
        return numbers

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
