"""Turns of slots, for systems that serve whoever is ready: a decision begins rows and is sent, an outcome completes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from paceline.collect.acting import make_acting
from paceline.collect.batching import AdaptiveBatching
from paceline.experience.chunks import Chunks
from paceline.experience.layouts import Variable
from paceline.experience.rollout import Rollout
from paceline.pool.batches import copied, union
from paceline.pool.protocol import StepBatch
from paceline.stop import StopRun

if TYPE_CHECKING:
    from paceline.agent.on_policy import OnPolicy
    from paceline.run import Run


class Turns:
    """Decides for slots and takes in what comes of it. Every slot is held by the caller, or in flight."""

    def __init__(
        self, run: Run[OnPolicy], rollout: Rollout, book: Variable | Chunks, *, learning: bool = False
    ) -> None:
        """With `learning`, that goes on meanwhile on the same device."""
        self._pool, self._agent, self._clock, self._stop = run.pool, run.agent, run.clock, run.stop
        self._book = book
        self._acting = make_acting(run.agent.actor, rollout, recorded=not run.config.deterministic)
        on_cpu = run.group.device.type == "cpu"
        self._batching = AdaptiveBatching(run.pool, run.config.batching, learning=learning and on_cpu)

    def decide(self, batch: StepBatch) -> None:
        """Have actions chosen for the slots of `batch`, by the latest weights, and sent."""
        with self._clock.time("inference"):
            self._batching.begin_decision()
            self._agent.pick_up()
            actions = self._acting.decide(batch)
            with self._clock.time("simulation"):
                self._pool.send(actions, batch.slots)
            self._acting.note()

    def receive(
        self, most: int | None = None, seconds_left: float | None = None, first: np.ndarray | None = None
    ) -> StepBatch:
        """Slots with their outcomes, as `AdaptiveBatching.receive` has them."""
        with self._clock.time("simulation"):
            batch = self._batching.receive(self._book.num_in_flight, most, seconds_left, first)
        with self._clock.time("inference"):
            self._complete(batch)
        return batch

    def pause(self) -> None:
        """All outcomes are in the rollout."""
        with self._clock.time("inference"):
            self._acting.flush()
        self._batching.pause()

    def take_in(self, held: StepBatch) -> StepBatch:
        """Wait for all slots that are not `held`: then all are, unless the run is to stop."""
        self.pause()
        in_flight = self._book.num_in_flight
        if in_flight == 0 or self._stop.is_requested:
            return held
        held = copied(held)  # its arrays hold until the next `recv` only
        with self._clock.time("simulation"):
            batch = self._pool.recv(min_slots=in_flight)
        self._complete(batch)
        self._acting.flush()
        return union([held, copied(batch)])

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is StopRun:
            self.pause()  # a checkpoint is saved, which has the states of all slots that are not in flight

    def _complete(self, batch: StepBatch) -> None:
        if len(batch):
            self._acting.complete(batch)
