"""Acting: choose actions for a batch and write rows. `make_acting` picks the fastest equivalent of `PlainActing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from paceline.accel.recorded_acting import RecordedActing
from paceline.accel.send_first import SendFirst
from paceline.collect.actor import Actor
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import Decision
from paceline.experience.selection import Rows
from paceline.pool.protocol import StepBatch


class Acting(Protocol):
    """Acts for batches of a pool. The calls for a slot are `act`, `write_decisions`, `write_outcomes`, in order."""

    def act(self, batch: StepBatch) -> Mapping[str, Any]:
        """Actions for the slots of `batch`, as the pool takes them. They hold until the next call."""
        ...

    def write_decisions(self) -> None:
        """Finish the rows of the last `act`. Called once after each `act`, while simulators step."""
        ...

    def write_outcomes(self, batch: StepBatch) -> None:
        """Complete the rows in flight of the slots of `batch`, and start their next episodes. Writes may be
        deferred to the next `act` or `flush`. Do not read those rows and slot states before."""
        ...

    def flush(self) -> None:
        """Write everything that waits."""
        ...


def make_acting(actor: Actor, buffer: RolloutBuffer, *, on_device: bool, recorded: bool) -> Acting:
    """The fastest acting for this actor. Simulators that live `on_device` have the plain one. `recorded` says whether a
    recording is allowed, which does not give the same bits."""
    if on_device:
        return PlainActing(actor, buffer)
    if actor.inference.perceptron is not None:
        return SendFirst(actor, buffer, actor.inference.perceptron)
    if recorded and actor.inference.is_recorded:
        return RecordedActing(actor, buffer)
    return PlainActing(actor, buffer)


class OpponentActing:
    """Acts with a policy that does not learn: rows are counted, but nothing is written to them."""

    def __init__(self, actor: Actor, buffer: RolloutBuffer) -> None:
        self._actor, self._layout = actor, buffer.layout

    def act(self, batch: StepBatch) -> Mapping[str, Any]:
        decision = self._actor.decide(batch)
        self._layout.begin(batch)
        return self._actor.env_actions(decision.actions)

    def write_decisions(self) -> None:
        """Nothing is written."""

    def write_outcomes(self, batch: StepBatch) -> None:
        self._layout.complete(batch)
        self._actor.observe(batch)

    def flush(self) -> None:
        """Nothing waits."""


class PlainActing:
    """One operation after the other."""

    def __init__(self, actor: Actor, buffer: RolloutBuffer) -> None:
        self._actor, self._buffer = actor, buffer
        self._decided: tuple[Decision, Rows] | None = None

    def act(self, batch: StepBatch) -> Mapping[str, Any]:
        assert self._decided is None, "write_decisions was not called after the last act"
        decision = self._actor.decide(batch)
        self._decided = decision, self._buffer.open(decision, batch)
        return self._actor.env_actions(decision.actions)

    def write_decisions(self) -> None:
        assert self._decided is not None
        self._buffer.write_decision(*self._decided)
        self._decided = None

    def write_outcomes(self, batch: StepBatch) -> None:
        self._buffer.complete(self._actor.observe(batch), batch)

    def flush(self) -> None:
        """Nothing waits."""
