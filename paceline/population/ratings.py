"""Results of matches between players, and their Elo ratings with intervals.

The model is Bradley and Terry's: a player whose rating is higher by d wins with probability 1 / (1 + 10^(-d/400)). A
draw counts as half a win for both. Ratings are the most likely ones, with a weak normal prior, which keeps the ratings
of players without a win or without a loss finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

POINTS = 400 / math.log(10)
"""Elo points per unit of log-odds."""
PRIOR_POINTS = 1000.0
"""Standard deviation of the prior, in Elo points."""
MEAN = 1000.0
"""The mean rating where no player is the anchor."""
NORMAL_95 = 1.959963984540054
MOST_STEPS = 100
"""Steps of Newton's method at most. Ten are usual."""
TOLERANCE = 1e-9


class Matches:
    """Counts of wins and draws for every pair of players. A match of several players counts as one for each pair."""

    def __init__(self, players: Sequence[str] = ()) -> None:
        self.players: list[str] = []
        self._wins, self._draws = np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64)
        for player in players:
            self._index(player)

    def add(self, scores: Mapping[str, float]) -> None:
        """Count one match by the scores of its players. Of two players, the one with the higher score has won."""
        if not all(map(math.isfinite, scores.values())):
            raise ValueError(f"the scores of a match must be finite, got {dict(scores)}")
        indices = {player: self._index(player) for player in scores}
        for player, score in scores.items():
            for other, other_score in scores.items():
                if player != other:
                    self._wins[indices[player], indices[other]] += score > other_score
                    self._draws[indices[player], indices[other]] += score == other_score

    def add_counts(self, player: str, other: str, *, wins: int = 0, draws: int = 0, losses: int = 0) -> None:
        """Count several matches of two players, as `player` sees them."""
        if player == other or min(wins, draws, losses) < 0:
            raise ValueError(f"cannot count {wins} wins, {draws} draws and {losses} losses of {player} against {other}")
        one, two = self._index(player), self._index(other)
        self._wins[one, two] += wins
        self._wins[two, one] += losses
        self._draws[one, two] += draws
        self._draws[two, one] += draws

    def add_all(self, state: dict[str, Any]) -> None:
        """Count the matches in the `state_dict` of another table, too."""
        other = Matches()
        other.load_state_dict(state)
        rows = [self._index(player) for player in other.players]
        self._wins[np.ix_(rows, rows)] += other._wins
        self._draws[np.ix_(rows, rows)] += other._draws

    def sort(self, key: Callable[[str], Any]) -> None:
        """Order the players by `key`."""
        order = sorted(range(len(self.players)), key=lambda at: key(self.players[at]))
        self.players = [self.players[at] for at in order]
        self._wins, self._draws = (table[np.ix_(order, order)] for table in (self._wins, self._draws))

    @property
    def wins(self) -> np.ndarray:
        """[P, P]: how often the player of the row has beaten the player of the column."""
        return self._wins.copy()

    @property
    def draws(self) -> np.ndarray:
        """[P, P], symmetric."""
        return self._draws.copy()

    @property
    def losses(self) -> np.ndarray:
        """[P, P]: how often the player of the column has beaten the player of the row."""
        return self._wins.T.copy()

    @property
    def counts(self) -> np.ndarray:
        """[P, P]: matches of each pair."""
        return self._wins + self._wins.T + self._draws

    @property
    def scores(self) -> np.ndarray:
        """[P, P]: wins plus half of the draws."""
        return self._wins + 0.5 * self._draws

    def win_rates(self) -> np.ndarray:
        """[P, P]: mean score of the row's player against the column's; NaN for pairs that have not met."""
        counts = self.counts
        return np.divide(self.scores, counts, out=np.full(counts.shape, np.nan), where=counts > 0)

    def win_rate(self, player: str, other: str) -> float | None:
        """None if the two have not met."""
        if player not in self.players or other not in self.players:
            return None
        rate = float(self.win_rates()[self.players.index(player), self.players.index(other)])
        return None if math.isnan(rate) else rate

    def forget(self, player: str) -> None:
        """Remove a player and its matches."""
        at = self.players.index(player)
        self.players.pop(at)
        self._wins, self._draws = (np.delete(np.delete(table, at, 0), at, 1) for table in (self._wins, self._draws))

    def state_dict(self) -> dict[str, Any]:
        return {"players": list(self.players), "wins": self._wins.tolist(), "draws": self._draws.tolist()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.players, size = list(state["players"]), len(state["players"])
        self._wins, self._draws = (np.array(state[name], np.int64).reshape(size, size) for name in ("wins", "draws"))

    def _index(self, player: str) -> int:
        if player not in self.players:
            self.players.append(player)
            self._wins, self._draws = (np.pad(table, (0, 1)) for table in (self._wins, self._draws))
        return self.players.index(player)


@dataclass(frozen=True, kw_only=True)
class Rating:
    """The Elo rating of one player, with the bounds of its 95 % interval."""

    elo: float
    low: float
    high: float


def elo_ratings(matches: Matches, *, anchor: str | None = None) -> dict[str, Rating]:
    """The rating of every player.

    The rating of `anchor` is 0, and intervals are those of the difference from it. Without an anchor the mean of all
    ratings is 1000. Intervals come from the Fisher information. They are a little too wide where many matches are
    drawn, because a draw has less variance than a win or a loss.
    """
    if anchor is not None and anchor not in matches.players:
        raise ValueError(f"the anchor {anchor!r} is no player; players: {', '.join(matches.players)}")
    size = len(matches.players)
    strength, covariance = _fit(matches.scores, matches.counts)
    # Row p: how the rating of player p follows from the strengths. Both kinds of anchor make the prior's mean cancel.
    origin = np.full(size, 1 / max(1, size)) if anchor is None else np.eye(size)[matches.players.index(anchor)]
    contrast = np.eye(size) - origin
    elo = (MEAN if anchor is None else 0.0) + POINTS * contrast @ strength
    variance = np.einsum("pi,ij,pj->p", contrast, covariance, contrast)
    half = NORMAL_95 * POINTS * np.sqrt(np.maximum(variance, 0.0))
    return {
        player: Rating(elo=float(mean), low=float(mean - width), high=float(mean + width))
        for player, mean, width in zip(matches.players, elo, half, strict=True)
    }


def _fit(scores: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The most likely strengths [P] in log-odds, and their covariance [P, P], by Newton's method.

    The log-likelihood is concave, so halving a step that does not improve it always leads to the maximum. With very
    many matches, rounding errors are larger than the tolerance; the last of `MOST_STEPS` steps is then as good.
    """
    precision = (POINTS / PRIOR_POINTS) ** 2
    strength = np.zeros(len(scores))
    value = _objective(strength, scores, precision)
    for _ in range(MOST_STEPS):
        probability = 1 / (1 + np.exp(strength[None, :] - strength[:, None]))
        gradient = (scores - counts * probability).sum(1) - precision * strength
        information = counts * probability * (1 - probability)
        hessian = np.diag(information.sum(1) + precision) - information
        step = np.linalg.solve(hessian, gradient)
        while (found := _objective(strength + step, scores, precision)) < value and np.abs(step).max() > TOLERANCE:
            step /= 2
        strength, value = strength + step, found
        if len(strength) == 0 or np.abs(step).max() <= TOLERANCE:
            break
    return strength, np.linalg.inv(hessian)


def _objective(strength: np.ndarray, scores: np.ndarray, precision: float) -> float:
    """Log-likelihood of the scores, plus the prior's."""
    likelihood = -(scores * np.logaddexp(0.0, strength[None, :] - strength[:, None])).sum()
    return float(likelihood - precision / 2 * (strength**2).sum())
