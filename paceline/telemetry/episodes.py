"""Statistics of the latest episodes of all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from paceline.errors import UsageError
from paceline.pool.protocol import Episode

WINDOW = 100
"""Means are over at least this many of the latest episodes."""


class LatestEpisodes:
    """Means of return, length and measures, each episode weighing the same."""

    def __init__(self, measures: Sequence[str]) -> None:
        self._measures = tuple(measures)
        self._names = [f"episode_{name}" for name in ("return", "length", *measures)]
        self.sums: deque[tuple[float, ...]] = deque()
        """By iteration: the number of episodes, and the sum of each statistic."""
        self.seen = 0
        """Episodes so far, since this process began."""

    @property
    def num_sums(self) -> int:
        """The length of `sums_of`."""
        return 1 + len(self._names)

    def sums_of(self, episodes: Sequence[Episode]) -> list[float]:
        """Statistics of one rank that can be added up over ranks, for `add`."""
        return [
            float(len(episodes)),
            sum(episode.episode_return for episode in episodes),
            float(sum(episode.length for episode in episodes)),
            *(sum(_measured(episode, name) for episode in episodes) for name in self._measures),
        ]

    def add(self, sums: Sequence[float]) -> None:
        """Count the episodes of one iteration."""
        self.seen += int(sums[0])
        if sums[0]:
            self.sums.append(tuple(sums))
        while len(self.sums) > 1 and sum(entry[0] for entry in self.sums) - self.sums[0][0] >= WINDOW:
            self.sums.popleft()

    def clear(self) -> None:
        """Begin anew."""
        self.sums.clear()
        self.seen = 0

    def means(self) -> dict[str, float | None]:
        """By name; None before the first episode has ended."""
        if not self.sums:
            return dict.fromkeys(self._names)
        count, *totals = (sum(column) for column in zip(*self.sums, strict=True))
        return {name: total / count for name, total in zip(self._names, totals, strict=True)}

    def mean_return(self, num_slots: int) -> float | None:
        """Of the latest episodes, once they stand for all: the first that end are the short ones."""
        return self.means()["episode_return"] if self.seen >= max(WINDOW, num_slots) else None


def _measured(episode: Episode, name: str) -> float:
    if name not in episode.info:
        has = ", ".join(episode.info) or "no numbers"
        raise UsageError(f"measure_names has {name!r}, which the last info of an episode lacks; it has {has}")
    return episode.info[name]
