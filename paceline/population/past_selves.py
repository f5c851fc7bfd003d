"""The past selves of a policy: which snapshots are kept, and which are drawn as opponents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.random import Generator

UNKNOWN_WIN_RATE = 0.5
"""Assumed against a past self that was not met yet."""


class PastSelves:
    """The steps at which snapshots of one policy were taken, ascending. Their weights are kept elsewhere.

    At most `keep` stay. The first and the latest always do. Of the others the one goes whose neighbours are closest to
    each other, so that the rest stays spread over training.
    """

    def __init__(self, keep: int) -> None:
        assert keep >= 2
        self._keep = keep
        self.steps: list[int] = []

    def add(self, step: int) -> list[int]:
        """Count a new snapshot. Returns the snapshots that are no longer needed."""
        if self.steps and step <= self.steps[-1]:
            raise ValueError(f"a snapshot of step {step} cannot follow one of step {self.steps[-1]}")
        self.steps.append(step)
        dropped = []
        while len(self.steps) > self._keep:
            gaps = [after - before for before, after in zip(self.steps, self.steps[2:], strict=False)]
            dropped.append(self.steps.pop(1 + gaps.index(min(gaps))))
        return dropped

    def draw(self, count: int, generator: Generator, win_rates: Mapping[int, float] | None = None) -> list[int]:
        """`count` different snapshots, or all if there are fewer.

        With the policy's `win_rates` against them, by step, those that it still loses to are more likely: by
        (1 - win rate)^2, AlphaStar's prioritised fictitious self-play. Otherwise all are equally likely.
        """
        count = min(count, len(self.steps))
        if count == 0:
            return []
        weights = np.ones(len(self.steps))
        if win_rates is not None:
            weights = np.array([(1 - win_rates.get(step, UNKNOWN_WIN_RATE)) ** 2 for step in self.steps])
        weights += 1e-6  # a past self that never wins can still be drawn
        drawn = generator.choice(len(self.steps), count, replace=False, p=weights / weights.sum())
        return [self.steps[index] for index in drawn]

    def state_dict(self) -> dict[str, Any]:
        return {"steps": list(self.steps)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the saved snapshots. If fewer are kept from now on, `add` drops the surplus."""
        self.steps = list(state["steps"])
