"""Which policy played a finished episode, and in which match.

A pool reports an episode on its own, before or after the batch in which it ended was received. `NumberedGames` is for
pools whose batches have the numbers of games, `CountedEpisodes` for the others.

Legend: E environments, A agents of each, N = E * A slots.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np

from paceline.pool.protocol import Episode

UNKNOWN = -1


class PlayedBy(NamedTuple):
    """Who played an episode."""

    policy: int
    match: int


class NumberedGames:
    """The pool numbers the games of each environment, and `Episode.match` is such a number."""

    def __init__(self, num_envs: int, agents_per_env: int) -> None:
        self._agents = agents_per_env
        self._number = np.full(num_envs, UNKNOWN)
        """[E]: the number of the present game."""
        self._games: dict[tuple[int, int], tuple[int, tuple[int, ...]]] = {}
        """By environment and number: the match, and the policy of each agent."""

    def differ(self, envs: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """bool: which of `envs` do not play the game that they played before."""
        return self._number[envs] != numbers

    def are_known(self, envs: np.ndarray) -> np.ndarray:
        """bool: which of `envs` have played a game before."""
        return self._number[envs] != UNKNOWN

    def note(self, env: int, number: int, match: int, policies: tuple[int, ...]) -> None:
        """The present game of `env`."""
        self._number[env] = number
        self._games[env, number] = match, policies

    def who_played(self, episode: Episode) -> PlayedBy | None:
        """None if its game was not received yet."""
        env, agent = divmod(episode.slot, self._agents)
        if (found := self._games.get((env, episode.match))) is None:
            return None
        match, policies = found
        return PlayedBy(policies[agent], match)

    def is_past(self, episode: Episode) -> bool:
        """Whether the game of an episode that `who_played` does not know is over."""
        return bool(episode.match < self._number[episode.slot // self._agents])

    def forget_old(self) -> None:
        """Forget games that are over. Their episodes were reported."""
        self._games = {key: found for key, found in self._games.items() if key[1] == self._number[key[0]]}

    def start_anew(self, envs: np.ndarray, slots: np.ndarray) -> None:
        """The environments begin new games, with numbers that the next batch has."""
        self._number[envs] = UNKNOWN

    def state_dict(self) -> dict[str, Any]:
        return {
            "number": self._number.tolist(),
            "games": [(*key, match, list(policies)) for key, (match, policies) in self._games.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._number[:] = state["number"]
        self._games = {(env, number): (match, tuple(policies)) for env, number, match, policies in state["games"]}


class CountedEpisodes:
    """The pool counts the episodes of each slot, and `Episode.match` is such a count. The pool may leave out the oldest
    episodes."""

    def __init__(self, num_slots: int) -> None:
        self._ended: list[deque[tuple[int, PlayedBy]]] = [deque() for _ in range(num_slots)]
        """By slot: the counts of episodes that have ended and were not reported yet, and who played them."""
        self._count = np.zeros(num_slots, np.int64)
        """[N]: episodes that have ended. Checkpoints of older versions do not say it."""

    def note(self, slots: np.ndarray, policies: np.ndarray, matches: np.ndarray) -> None:
        """Episodes have ended in `slots`."""
        for slot, policy, match in zip(slots.tolist(), policies.tolist(), matches.tolist(), strict=True):
            self._ended[slot].append((int(self._count[slot]), PlayedBy(policy, match)))
        self._count[slots] += self._count[slots] != UNKNOWN

    def who_played(self, episode: Episode) -> PlayedBy | None:
        """None if its end was not received yet."""
        waiting, count = self._ended[episode.slot], episode.match
        if not any(UNKNOWN in (number, count) or number == count for number, _ in waiting):
            return None
        while True:
            number, found = waiting.popleft()  # those before it were left out
            if UNKNOWN in (number, count) or number == count:
                return found

    def is_past(self, episode: Episode) -> bool:
        return False

    def forget_old(self) -> None:
        """Nothing is kept."""

    def start_anew(self, envs: np.ndarray, slots: np.ndarray) -> None:
        """`slots` count their episodes from 0 again."""
        self._count[slots] = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "ended": [[(*played_by, number) for number, played_by in waiting] for waiting in self._ended],
            "count": self._count.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ended = [
            deque((number[0] if number else UNKNOWN, PlayedBy(policy, match)) for policy, match, *number in waiting)
            for waiting in state["ended"]
        ]
        self._count[:] = state.get("count", UNKNOWN)
