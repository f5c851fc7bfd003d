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
    """The record of the episode that one stream is playing."""

    def __init__(self, row: int, start: StreamSnapshot) -> None:
        self._row, self._snapshots = row, [start]
        self._steps: list[Happened] = []

    def add(self, happened: Happened, after: StreamSnapshot) -> None:
        """A step was done."""
        self._steps.append(happened)
        self._snapshots.append(after)

    def record(self) -> EpisodeRecord:
        row, start = self._row, self._snapshots[0]
        parts = zip(*(each.state for each in self._snapshots), strict=True)
        states = State(*(torch.stack([values[row] for values in part]) for part in parts))
        targets = torch.stack([each.targets[row] for each in self._snapshots]).double().numpy()
        where = start.scenes[row], start.episodes[row], start.wanted[row]
        return EpisodeRecord(*where, states, targets, list(self._steps))


def _on_host(values: Tensor) -> Tensor:
    return values.to("cpu", copy=True)


def happened(simulator: Rearrangement) -> list[Happened]:
    """[N]: what the last step has come to."""
    facts = simulator.last_facts
    assert facts is not None
    columns = (part.tolist() for part in (facts.taken, facts.dropped, facts.collided, facts.stopped))
    return [Happened(*values) for values in zip(*columns, strict=True)]
