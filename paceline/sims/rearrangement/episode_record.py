"""`EpisodeRecord`: what a robot did in one episode, for maps, pictures and classes of failures. On the host.

Legend: T steps of the episode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline.sims.rearrangement.physics.world import NOTHING, State, arm_of
from paceline.sims.rearrangement.simulator import Rearrangement, Stream
from paceline.sims.rearrangement.tasks.protocol import Facts


class Happened(NamedTuple):
    """What a step has come to; see `Facts`."""

    taken: int
    dropped: int
    collided: bool
    stopped: bool


class EpisodeRecord(NamedTuple):
    scene: int
    number: int
    """Of the episode in its house."""
    wanted: int
    """The first column of a skill: the object, target or joint that it is about. Without a meaning in a scenario."""
    states: State
    """[T + 1, ...]: at the start, and after every step."""
    targets: np.ndarray
    """[T + 1, 3]: what the policy is told."""
    steps: list[Happened]
    """[T]."""

    @property
    def bases(self) -> np.ndarray:
        """[T + 1, 3]: x, y and heading."""
        return self.states.pose.double().numpy()

    @property
    def tips(self) -> np.ndarray:
        """[T + 1, 3]: the tip of the hand."""
        return arm_of(self.states).tip.double().numpy()

    def grasps(self) -> list[int]:
        """The states after the hand has taken something."""
        return [number + 1 for number, step in enumerate(self.steps) if step.taken != NOTHING]

    def releases(self) -> list[int]:
        """The states after the hand has let something go."""
        return [number + 1 for number, step in enumerate(self.steps) if step.dropped != NOTHING]

    def until(self, step: int) -> EpisodeRecord:
        """The record when only `step` steps were done."""
        states = State(*(part[: step + 1] for part in self.states))
        return self._replace(states=states, targets=self.targets[: step + 1], steps=self.steps[:step])


class StreamSnapshot(NamedTuple):
    """N streams at one time, copied to the host."""

    scenes: list[int]
    episodes: list[int]
    wanted: list[int]
    state: State
    targets: Tensor

    @classmethod
    def of(cls, simulator: Rearrangement, stream: Stream) -> StreamSnapshot:
        targets = simulator.task.target(stream.columns, simulator.facts_of(stream))
        return cls(
            scenes=stream.scenes.tolist(),
            episodes=stream.episodes.tolist(),
            wanted=stream.columns[:, 0].long().tolist(),
            state=State(*map(_on_host, stream.state)),
            targets=_on_host(targets),
        )


class OngoingRecord:
    """The record of the episode that one stream is playing. Reading it copies no states, so it can be read often."""

    def __init__(self, row: int, start: StreamSnapshot) -> None:
        self._row, self._where = row, (start.scenes[row], start.episodes[row], start.wanted[row])
        self._states = [_GrowingRows(part[row]) for part in start.state]
        self._targets = _GrowingRows(start.targets[row].double())
        self._steps: list[Happened] = []

    def add(self, happened: Happened, after: StreamSnapshot) -> None:
        """A step was done."""
        self._steps.append(happened)
        self._targets.add(after.targets[self._row])
        for rows, part in zip(self._states, after.state, strict=True):
            rows.add(part[self._row])

    def record(self) -> EpisodeRecord:
        states = State(*(rows.all() for rows in self._states))
        return EpisodeRecord(*self._where, states, self._targets.all().numpy(), list(self._steps))


class _GrowingRows:
    """Rows in one tensor, which becomes twice as long when it is full."""

    def __init__(self, first: Tensor) -> None:
        self._rows, self._count = first[None].clone(), 1

    def add(self, row: Tensor) -> None:
        if self._count == len(self._rows):
            self._rows = torch.cat((self._rows, torch.empty_like(self._rows)))
        self._rows[self._count] = row
        self._count += 1

    def all(self) -> Tensor:
        """A view. Rows that follow do not change it."""
        return self._rows[: self._count]


def _on_host(values: Tensor) -> Tensor:
    return values.to("cpu", copy=True)


def happened(facts: Facts) -> list[Happened]:
    """[N]: what a step has come to."""
    columns = (part.tolist() for part in (facts.taken, facts.dropped, facts.collided, facts.stopped))
    return [Happened(*values) for values in zip(*columns, strict=True)]
