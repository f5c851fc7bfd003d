"""The shape of an environment, and the spec of a pool of such environments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymnasium import spaces
from gymnasium.vector import VectorEnv

from paceline.errors import UsageError
from paceline.pool.config import PoolConfig
from paceline.pool.env_state import layers
from paceline.pool.kinds import AgentKind, find_kinds, joint_spaces
from paceline.pool.protocol import PoolSpec
from paceline.pool.reward_weights import announced_weights
from paceline.pool.spaces import leaves


@dataclass(frozen=True)
class EnvShape:
    """What all environments of a pool have in common."""

    kinds: tuple[AgentKind, ...]
    agents: tuple[str, ...] = ()
    """Names of PettingZoo agents; empty for a Gymnasium environment."""
    turn_based: bool = False
    reward_weights: tuple[tuple[str, float], ...] = ()
    measures: tuple[str, ...] = ()
    """See `PoolSpec.measures`. An environment announces them by its attribute `measure_names`."""

    def __str__(self) -> str:
        return "; ".join(
            f"{kind.name or len(kind.agents)}: {kind.observation_space}, {kind.action_space}" for kind in self.kinds
        )


def is_multi_agent(env: Any) -> bool:
    """Whether `env` has one of PettingZoo's two APIs."""
    return hasattr(env, "possible_agents")


def is_turn_based(env: Any) -> bool:
    """Whether `env` has PettingZoo's turn-based (AEC) API. Only that one has `last`."""
    return is_multi_agent(env) and hasattr(env, "last")


def env_shape(env: Any) -> EnvShape:
    if isinstance(env, VectorEnv):
        raise UsageError(
            f"{type(env).__name__} is a vector environment; allowed: from a function with the parameters num_envs and "
            "device"
        )
    if not is_multi_agent(env):
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), spaces.Space):
                raise UsageError(f"{env!r} has no {name} that is a Gymnasium space")
        only = AgentKind("", env.observation_space, env.action_space, (0,))
        weights = announced_weights(env, several_agents=False)
        return EnvShape((only,), reward_weights=weights, measures=_announced_measures(env))
    agents = tuple(map(str, env.possible_agents))
    pairs = [(env.observation_space(agent), env.action_space(agent)) for agent in env.possible_agents]
    weights = announced_weights(env, several_agents=True)
    return EnvShape(find_kinds(agents, pairs), agents, is_turn_based(env), weights, _announced_measures(env))


def _announced_measures(env: Any) -> tuple[str, ...]:
    """The attribute `measure_names` of the outermost wrapper that has it: numbers in the last `info` of an episode."""
    wrappers = layers(env) if hasattr(env, "unwrapped") else [env]
    names = next((layer.measure_names for layer in wrappers if hasattr(layer, "measure_names")), ())
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise UsageError(f"measure_names of {env} is {names!r}; allowed: a sequence of names")
    return tuple(names)


def make_spec(shapes: Mapping[int, EnvShape], config: PoolConfig, frameskip: int, num_workers: int) -> PoolSpec:
    """The spec of a pool. `shapes` are those of one or more of its environments, which must be equal."""
    (first, shape), *others = shapes.items()
    for env, other in others:
        if other != shape:
            raise UsageError(
                f"environments of one pool must have equal agents and spaces: environment {first} has {shape}, "
                f"environment {env} has {other}"
            )
    for kind in shape.kinds:
        for what, space in (("observation", kind.observation_space), ("action", kind.action_space)):
            if not any(0 not in leaf.shape for leaf in leaves(space, what)):
                raise UsageError(f"the {what} space {space} has no numbers; allowed: spaces with one number or more")
    observation_space, action_space = joint_spaces(shape.kinds)
    return PoolSpec(
        observation_space=observation_space,
        action_space=action_space,
        num_envs=config.num_envs,
        agents_per_env=max(1, len(shape.agents)),
        agents=shape.agents if len(shape.agents) > 1 else (),
        kinds=shape.kinds,
        turn_based=shape.turn_based,
        reward_weights=shape.reward_weights,
        measures=shape.measures,
        numbers_games=True,
        frameskip=frameskip,
        num_groups=config.groups,
        envs_per_worker=config.num_envs // num_workers,
    )
