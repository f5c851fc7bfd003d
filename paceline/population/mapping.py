"""Mappings: which policy plays which agent of a match.

Agents with equal spaces are one kind. With K kinds, policy p plays only agents of kind p modulo K.

Legend: M matches that begin, A agents of an environment, P policies, K kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paceline.collect.kind_slots import kind_of_agents
from paceline.collect.policy_assignment import Draw
from paceline.errors import UsageError
from paceline.own_code import load
from paceline.pool.protocol import PoolSpec
from paceline.population.config import PopulationConfig
from paceline.wording import counted

UserFunction = Callable[[int, Sequence[str], np.random.Generator], Sequence[int]]
"""Of the user's own: environment, names of its agents, random numbers -> the policy of each agent."""


def make_draw(config: PopulationConfig, spec: PoolSpec, own: Sequence[int]) -> Draw:
    """The mapping that `config` names, for a rank that trains the policies `own`."""
    kinds = None if len(spec.kinds) == 1 else kind_of_agents(spec)
    if config.mapping == "random":
        anyone = RandomMapping(config.policies, spec.agents_per_env, kinds)
        return anyone if len(own) == config.policies else OneOwnMapping(anyone, own)
    if config.mapping == "agent":
        return AgentMapping(config.policies, spec.agents_per_env, kinds)
    return UserMapping(load("population.mapping", config.mapping, "a function"), config, spec)


class RandomMapping:
    """Sample Factory's: each agent of each match gets any policy of its kind."""

    def __init__(self, policies: int, agents: int, kinds: np.ndarray | None = None) -> None:
        """`kinds` [A] has the kind of each agent. None: there is one."""
        self._kinds = np.zeros(agents, np.int64) if kinds is None else kinds
        self._num_kinds = int(self._kinds.max()) + 1
        self._counts = _policies_of(self._kinds, policies)

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        drawn = generator.integers(self._counts, size=(len(envs), len(self._counts)))
        return drawn * self._num_kinds + self._kinds

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class OneOwnMapping:
    """Another mapping, changed so that every match teaches a policy of this rank: where none of them plays, one of them
    replaces that of an agent. Both are drawn at random."""

    def __init__(self, draw: Draw, own: Sequence[int]) -> None:
        self._draw, self._own = draw, np.array(own)

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        policies = self._draw(envs, generator)
        without = np.flatnonzero(~np.isin(policies, self._own).any(1))
        agents = generator.integers(policies.shape[1], size=len(without))
        policies[without, agents] = generator.choice(self._own, size=len(without))
        return policies

    def state_dict(self) -> dict[str, Any]:
        return self._draw.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._draw.load_state_dict(state)


class AgentMapping:
    """Each agent always has the same policy: agent number modulo number of policies. With several kinds, agents and
    policies are numbered within their kind."""

    def __init__(self, policies: int, agents: int, kinds: np.ndarray | None = None) -> None:
        """`kinds` [A] has the kind of each agent. None: there is one."""
        kinds = np.zeros(agents, np.int64) if kinds is None else kinds
        within = np.array([np.count_nonzero(kinds[:agent] == kind) for agent, kind in enumerate(kinds)])
        self._fixed = within % _policies_of(kinds, policies) * (int(kinds.max()) + 1) + kinds
        playing = len(np.unique(self._fixed))
        if playing < policies:
            raise UsageError(
                f"population.mapping agent lets only {playing} of {policies} policies play; allowed: "
                f"--population.policies {playing}, or --population.mapping random"
            )

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.tile(self._fixed, (len(envs), 1))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


def _policies_of(kinds: np.ndarray, policies: int) -> np.ndarray:
    """[A]: how many policies can play each agent."""
    return np.array([len(range(kind, policies, int(kinds.max()) + 1)) for kind in kinds.tolist()])


class UserMapping:
    """A function of the user's own."""

    def __init__(self, function: UserFunction, config: PopulationConfig, spec: PoolSpec) -> None:
        self._function, self._config = function, config
        self._agents = spec.agents or tuple(f"agent_{agent}" for agent in range(spec.agents_per_env))
        self._kinds, self._num_kinds = kind_of_agents(spec), len(spec.kinds)

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return np.stack([self._checked(self._function(env, self._agents, generator)) for env in envs.tolist()])

    def _checked(self, found: Any) -> np.ndarray:
        """[A]: what the function returned for one match. Refused unless it names a policy for each agent."""
        source, numbers = f"population.mapping {self._config.mapping}", np.asarray(found)
        if numbers.shape != (len(self._agents),) or numbers.dtype.kind not in "iu":
            raise UsageError(
                f"{source} returned {found!r}; allowed: a list of {counted(len(self._agents), 'policy number')}, for "
                f"{', '.join(self._agents)}"
            )
        wrong = numbers[(numbers < 0) | (numbers >= self._config.policies)]
        if len(wrong):
            raise UsageError(f"{source} returned policy {wrong[0]}; allowed: 0 to {self._config.policies - 1}")
        for agent, policy, kind in zip(self._agents, numbers.tolist(), self._kinds.tolist(), strict=True):
            if policy % self._num_kinds != kind:
                allowed = ", ".join(map(str, range(kind, self._config.policies, self._num_kinds)))
                raise UsageError(
                    f"{source} returned policy {policy} for {agent}, which plays agents with other spaces; allowed: "
                    f"{allowed}"
                )
        return numbers

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""
