"""Acting: choose actions for a batch and write rows. `make_acting` picks the fastest equivalent of `PlainActing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from paceline.accel.recorded_acting import RecordedActing
from paceline.accel.send_first import SendFirst
from paceline.collect.actor import Actor
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.rows import Decision
from paceline.experience.selection import Rows
from paceline.pool.protocol import StepBatch


class Acting(Protocol):
    """Acts for batches of a pool. The calls for a slot are `start`, `actions`, `write_decisions`, `write_outcomes`."""

    def start(self, batch: StepBatch) -> None:
        """Choose actions for the slots of `batch`. A device may still work on them afterwards, so that several policies
        can start before the first has finished."""
        ...

    def actions(self) -> Mapping[str, Any]:
        """The actions that the last `start` chose, as the pool takes them. They hold until the next `start`."""
        ...

    def write_decisions(self) -> None:
        """Finish the rows of the last `start`. Called once after each `actions`, while simulators step."""
        ...

    def write_outcomes(self, batch: StepBatch) -> None:
        """Complete the rows in flight of the slots of `batch`, and start their next episodes. Writes may be
        deferred to the next `start` or `flush`. Do not read those rows and slot states before."""
        ...

    def flush(self) -> None:
        """Write everything that waits."""
        ...


def make_acting(
    actors: Mapping[int, Actor], buffer: RolloutBuffer, *, learned: bool, recorded: bool, on_device: bool
) -> dict[tuple[int, ...], Acting]:
    """The fastest equivalents of `PlainActing` for policies of one kind of agents, by the numbers of those that it acts
    for. Policies act together where they can.

    `learned` says whether the policies learn. Call it once for those that do and once for the others: in a recording
    every policy has as many places as the one with the most slots, and past selves have few slots. `recorded` says
    whether a GPU may record. Simulators that live `on_device` are recorded otherwise.
    """
    can_record = recorded and not on_device and buffer.has_spare_row
    together = {n: a for n, a in actors.items() if can_record and isinstance(a, Actor) and a.inference.is_recorded}
    how: Callable[..., Acting] = partial(RecordedActing, learned=learned)
    if not together and learned and not on_device:
        together = {n: actor for n, actor in actors.items() if actor.inference.perceptron is not None}
        how = SendFirst
    alone = PlainActing if learned else OpponentActing
    found: dict[tuple[int, ...], Acting] = {
        (n,): alone(actor, buffer) for n, actor in actors.items() if n not in together
    }
    if together:
        found[tuple(together)] = how(list(together.values()), buffer, list(together))
    return found


class OpponentActing:
    """Acts with a policy that does not learn: rows are counted, but nothing is written to them."""

    def __init__(self, actor: Actor, buffer: RolloutBuffer) -> None:
        self._actor, self._layout = actor, buffer.layout
        self._chosen: dict[str, Any] = {}

    def start(self, batch: StepBatch) -> None:
        self._chosen = self._actor.decide(batch).actions
        self._layout.begin(batch)

    def actions(self) -> Mapping[str, Any]:
        return self._actor.env_actions(self._chosen)

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

    def start(self, batch: StepBatch) -> None:
        assert self._decided is None, "write_decisions was not called after the last start"
        decision = self._actor.decide(batch)
        self._decided = decision, self._buffer.open(decision, batch)

    def actions(self) -> Mapping[str, Any]:
        assert self._decided is not None
        return self._actor.env_actions(self._decided[0].actions)

    def write_decisions(self) -> None:
        assert self._decided is not None
        self._buffer.write_decision(*self._decided)
        self._decided = None

    def write_outcomes(self, batch: StepBatch) -> None:
        self._buffer.complete(self._actor.observe(batch), batch)

    def flush(self) -> None:
        """Nothing waits."""
