"""Kinds of agents: agents of one environment with equal spaces. Most environments have one kind.

Where there are several, the slot table has the columns of each kind under the kind's name, and a slot uses those of its
own kind. A policy sees only its kind, without that name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces

from paceline.pool.spaces import Leaf, leaves


@dataclass(frozen=True)
class AgentKind:
    """Agents of one environment that share their spaces."""

    name: str
    """Empty for the only kind of an environment."""
    observation_space: spaces.Space
    action_space: spaces.Space
    agents: tuple[int, ...]
    """Indices of the agents within an environment, ascending."""
    obs_columns: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The pool's name of every observation leaf, by the kind's own name."""
    action_columns: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The pool's name of every action leaf, by the kind's own name."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "obs_columns", self._columns(leaves(self.observation_space, "obs")))
        object.__setattr__(self, "action_columns", self._columns(leaves(self.action_space, "action")))

    def _columns(self, found: Sequence[Leaf]) -> dict[str, str]:
        if not self.name:
            return {leaf.name: leaf.name for leaf in found}
        return {leaf.name: ".".join(map(str, (self.name, *leaf.path))) for leaf in found}

    def obs_of(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a pool's observation `columns` that belong to this kind, under the kind's own names."""
        return {name: columns[column] for name, column in self.obs_columns.items()}

    def actions_of(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Those of a pool's action `columns` that belong to this kind, under the kind's own names."""
        return {name: columns[column] for name, column in self.action_columns.items()}


def find_kinds(agents: Sequence[str], pairs: Sequence[tuple[spaces.Space, spaces.Space]]) -> tuple[AgentKind, ...]:
    """The kinds of `agents`, whose observation and action spaces are `pairs`, in the order of their first agents."""
    groups: list[tuple[tuple[spaces.Space, spaces.Space], list[int]]] = []
    for index, pair in enumerate(pairs):
        for known, members in groups:
            if known == pair:
                members.append(index)
                break
        else:
            groups.append((pair, [index]))
    if len(groups) == 1:
        return (AgentKind("", *groups[0][0], tuple(groups[0][1])),)
    names = _names([[agents[index] for index in members] for _, members in groups])
    return tuple(AgentKind(name, *pair, tuple(members)) for name, (pair, members) in zip(names, groups, strict=True))


def joint_spaces(kinds: Sequence[AgentKind]) -> tuple[spaces.Space, spaces.Space]:
    """The observation and the action space of a pool: those of the only kind, or one entry per kind."""
    if len(kinds) == 1:
        return kinds[0].observation_space, kinds[0].action_space
    return (
        spaces.Dict({kind.name: kind.observation_space for kind in kinds}),
        spaces.Dict({kind.name: kind.action_space for kind in kinds}),
    )


def _names(groups: Sequence[Sequence[str]]) -> list[str]:
    """A name for every group of agents: "wolf" for wolf_0 and wolf_1 if no other group has it, else its first agent's.

    Dots separate the parts of a column's name, so no kind has one in its own.
    """
    stems = [{re.sub(r"_?\d+$", "", agent) or agent for agent in group} for group in groups]
    names = []
    for stem, group in zip(stems, groups, strict=True):
        is_unique = len(stem) == 1 and sum(bool(stem & other) for other in stems) == 1
        names.append((next(iter(stem)) if is_unique else group[0]).replace(".", "_"))
    if len(set(names)) == len(names):
        return names
    return [f"{name}_{number}" for number, name in enumerate(names)]
