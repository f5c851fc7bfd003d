"""Several players in the slots of one pool: the two sides of a match, or the policies of different kinds of agents.

Legend: M matches, A agents of an environment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from paceline.collect.policy_assignment import PlayedMatch, PolicyAssignment
from paceline.evaluation.player import Player
from paceline.evaluation.saved import SavedRun
from paceline.pool.batches import merge_actions
from paceline.pool.protocol import Episode, PoolSpec, StepBatch


def quotas(num_episodes: int, num_slots: int) -> np.ndarray:
    """[num_slots]: how many episodes each slot contributes; they differ by at most one."""
    return num_episodes // num_slots + (np.arange(num_slots) < num_episodes % num_slots)


class Acts(Protocol):
    """Chooses actions for the slots of a pool."""

    def act(self, batch: StepBatch, *, on_device: bool) -> dict[str, Any]: ...


class TakesTurns(Acts, Protocol):
    """A player that can act in slots in which another player acted before."""

    def start_anew(self, slots: np.ndarray) -> None:
        """Forget what happened in `slots`."""
        ...


class Fixtures:
    """Which players meet in which match, agent by agent. A `Draw` for `PolicyAssignment`.

    Every environment plays a part of the list, in order. One that has played its part plays on, and its further matches
    do not count.
    """

    def __init__(self, players: np.ndarray, num_envs: int) -> None:
        """`players` [M, A]: the player of each agent."""
        self._players = players
        self.remaining = quotas(len(players), num_envs)
        """[num_envs]: matches that are not over."""
        self._next = np.cumsum(self.remaining) - self.remaining

    def __call__(self, envs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        drawn = self._players[self._next[envs] % len(self._players)]
        self._next[envs] += 1
        return drawn

    def repeat(self, envs: np.ndarray) -> None:
        """The present matches of `envs` do not end. They are the next to be drawn there."""
        self._next[envs] -= 1

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore."""


class SeatedPlayers:
    """Several players in the slots of one pool, with the `act` of a single one. Where agents have different kinds,
    player k plays kind k."""

    def __init__(self, spec: PoolSpec, players: Sequence[TakesTurns], fixtures: Fixtures) -> None:
        self._spec, self._players, self._fixtures = spec, players, fixtures
        self._assignment = PolicyAssignment(spec, fixtures, np.random.default_rng(0))
        self.num_lost = 0
        """Matches that ended with a failure of their simulator. They were played again."""

    def act(self, batch: StepBatch, *, on_device: bool) -> dict[str, Any]:
        """Actions for every row. Where a match is over, the players of the next one act."""
        self._observe(batch)
        parts = self._assignment.parts(batch)
        chosen = [self._players[part.policy].act(part.batch, on_device=on_device) for part in parts]
        if len(self._spec.kinds) > 1:
            kinds = [self._spec.kinds[part.policy] for part in parts]
            rows = [part.rows for part in parts]
            return merge_actions(self._spec, len(batch), list(zip(kinds, rows, chosen, strict=True)))
        merged: dict[str, Any] = {}
        for part, actions in zip(parts, chosen, strict=True):
            for name, values in actions.items():
                if name not in merged:
                    shape = (len(batch), *values.shape[1:])
                    merged[name] = values.new_empty(shape) if on_device else np.empty(shape, values.dtype)
                merged[name][part.rows] = values
        return merged

    def _observe(self, batch: StepBatch) -> None:
        lost, slots = (values.cpu().numpy() if self._spec.on_device else values for values in (batch.lost, batch.slots))
        if lost.any():
            envs = np.unique(slots[lost] // self._spec.agents_per_env)
            self.num_lost += int((self._fixtures.remaining[envs] > 0).sum())
            self._fixtures.repeat(envs)
        changed = self._assignment.observe(batch)
        if len(changed):
            for player in self._players:
                player.start_anew(changed)

    def take_finished(self, episodes: Sequence[Episode]) -> list[PlayedMatch]:
        """The matches that are over and count."""
        counted = []
        for match in self._assignment.take_finished(episodes).matches:
            env = next(episode.slot for played in match.episodes for episode in played) // self._spec.agents_per_env
            if self._fixtures.remaining[env]:
                self._fixtures.remaining[env] -= 1
                counted.append(match)
        return counted


def make_player(run: SavedRun, spec: PoolSpec, device: torch.device, *, sampled: bool, seed: int) -> Acts:
    """The policy of a run in all slots. Agents of other kinds than its own are played by the best policies of those."""
    if len(spec.kinds) == 1:
        return Player(run.policy(spec, device), spec.num_slots, device, sampled=sampled, seed=seed)
    players = [
        Player(member.policy(spec, device), len(spec.kind_slots(kind)), device, sampled=sampled, seed=seed + number)
        for number, (member, kind) in enumerate(zip(run.team(spec), spec.kinds, strict=True))
    ]
    kinds = [
        number for agent in range(spec.agents_per_env) for number, kind in enumerate(spec.kinds) if agent in kind.agents
    ]
    return SeatedPlayers(spec, players, Fixtures(np.array([kinds]), spec.num_envs))
