"""`SharedMatches`: the results of the matches of all ranks."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from paceline.distributed.gather import gather_to_all
from paceline.distributed.runtime import Group
from paceline.population.ratings import Matches

SECONDS = 10.0
"""Ranks add up their matches at least so often, while there are any."""
MOST_PLAYERS = 200
_OWN = re.compile(r"\d+@\d+")
"""The name of a policy of this run, as it was at some time."""


class SharedMatches:
    """Each match is played on one rank, which counts it. When all ranks meet, they add up what they have counted."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.table = Matches()
        """The matches of all ranks until they last met, the same on all ranks. Those of a single rank, until now."""
        self._counted = self.table if group.size == 1 else Matches()
        """The matches of this rank since then."""
        self._due_at = 0.0

    def add(self, scores: Mapping[str, float]) -> None:
        """Count a match of this rank by the scores of its players."""
        self._counted.add(scores)

    @property
    def is_due(self) -> bool:
        """Whether this rank has had matches for a while that others do not know."""
        return self._group.size > 1 and bool(self._counted.players) and time.monotonic() >= self._due_at

    def share(self) -> None:
        """Add up the matches of all ranks. All ranks call it together."""
        if self._group.size == 1:
            return
        for counts in gather_to_all(self._group, self._counted.state_dict()):
            self.table.add_all(counts)
        self.table.sort(_age)  # the order does not depend on when ranks have met
        self._counted, self._due_at = Matches(), time.monotonic() + SECONDS

    @property
    def first_player(self) -> str:
        """The earliest player of the matches so far: the zero of the ratings."""
        own = [name for name in self.table.players if is_own(name)]
        return min(own, key=step_of, default=self.table.players[0])

    def forget_some_players(self) -> None:
        """Keep the table small: of too many players, every second one of the older half goes."""
        if len(self.table.players) <= MOST_PLAYERS:
            return
        own = sorted((name for name in self.table.players if is_own(name)), key=step_of)
        for name in own[1 : len(own) // 2 : 2]:
            self.table.forget(name)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """All ranks continue with the `table` of a checkpoint. What a rank has counted by itself is gone."""
        self.table.load_state_dict(state)
        if self._group.size > 1:
            self._counted = Matches()


def is_own(player: str) -> bool:
    """Whether this is the name of a policy of this run, as it was at some time."""
    return _OWN.fullmatch(player) is not None


def step_of(player: str) -> int:
    """When a policy of this run was as its name says."""
    return int(player.partition("@")[2])


def _age(player: str) -> tuple[bool, int, int, str]:
    """Policies of this run from the earliest on, then opponents that do not learn."""
    if not is_own(player):
        return True, 0, 0, player
    return False, step_of(player), int(player.partition("@")[0]), player
