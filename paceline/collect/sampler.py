"""`Sampler`: acts for slots and writes rows. It owns the state of every slot, and never learns.

Every slot is held by the caller, or in flight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.collect.acting import make_acting
from paceline.collect.actor import Actor
from paceline.collect.batching import AdaptiveBatching
from paceline.collect.config import BatchingConfig
from paceline.experience.layouts import Variable
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.pool.batches import copied, inactive, union
from paceline.pool.protocol import Pool, StepBatch
from paceline.stop import Stop, StopRun


class Sampler:
    """Acts for the slots of a pool with a policy. `fill` says which buffer it writes to."""

    def __init__(
        self,
        pool: Pool,
        actor: Actor,
        stop: Stop,
        batching: BatchingConfig,
        *,
        refresh_weights: Callable[[], object],
        recorded: bool,
    ) -> None:
        """`refresh_weights` is called before each decision. `recorded` says whether acting may be recorded on a GPU."""
        self.pool, self.actor, self._stop, self._clock = pool, actor, stop, actor.clock
        self._refresh_weights, self._recorded = refresh_weights, recorded
        self._batching_config, self._batching = batching, AdaptiveBatching(pool, batching)
        self._buffer: RolloutBuffer | None = None
        self._restored: dict[str, Any] | None = None
        """The saved rollout that `fill` continues."""

    def fill(self, buffer: RolloutBuffer, *, learner_shares_cores: bool = False) -> None:
        """Write rows to `buffer` from now on. If a rollout was restored that fits, the buffer continues it.

        `learner_shares_cores`: a learner computes on the cores of the simulators meanwhile.
        """
        self._buffer = buffer
        self._batching = AdaptiveBatching(self.pool, self._batching_config, learner_shares_cores=learner_shares_cores)
        self._acting = make_acting(
            self.actor, buffer, on_device=self.pool.spec.on_device, recorded=self._recorded and buffer.has_spare_row
        )
        state, self._restored = self._restored, None
        if state is not None and isinstance(buffer.layout, Variable):
            buffer.load_state_dict(state)

    def begin(self, held: StepBatch) -> None:
        """`held` is the first batch. Slots that it lacks have waited for their turn since before a checkpoint.

        If the rows of their decisions were not saved, they have inactive rows, which are not experience. Their next
        decisions are the first of episodes.
        """
        assert self._buffer is not None
        waiting = np.setdiff1d(np.arange(self.pool.spec.num_slots), held.slots)
        waiting = waiting[self._buffer.layout.is_idle(waiting)]
        if len(waiting):
            stand_in = inactive(waiting)
            self.actor.remember_active(stand_in)
            self._buffer.begin_inactive(stand_in)

    @property
    def num_in_flight(self) -> int:
        assert self._buffer is not None
        return self._buffer.layout.num_in_flight

    def act(self, batch: StepBatch) -> None:
        """Choose actions for `batch` by the latest weights, send them, and write rows while simulators step."""
        with self._clock.time("inference"):
            self._batching.begin_decision()
            self._refresh_weights()
            actions = self._acting.act(batch)
        with self._clock.time("simulation"):
            self.pool.send(actions, batch.slots)
        with self._clock.time("inference"):
            self._acting.write_decisions()

    def receive_all(self) -> StepBatch:
        """The slots of all simulators, with their outcomes; none if the run has to stop."""
        with self._clock.time("simulation"):
            batch = self.pool.recv(min_slots=None)
        self.observe(batch)
        return batch

    def receive(
        self, most: int | None = None, seconds_left: float | None = None, first: np.ndarray | None = None
    ) -> StepBatch:
        """Slots that are ready, with their outcomes. See `AdaptiveBatching.receive`."""
        with self._clock.time("simulation"):
            batch = self._batching.receive(self.num_in_flight, most, seconds_left, first)
        self.observe(batch)
        return batch

    def observe(self, batch: StepBatch) -> None:
        """Write the outcomes of the slots of `batch`."""
        if len(batch):
            with self._clock.time("inference"):
                self._acting.write_outcomes(batch)

    def flush(self) -> None:
        """Write all deferred outcomes to the buffer."""
        with self._clock.time("inference"):
            self._acting.flush()
        self._batching.pause()

    def drain(self, held: StepBatch) -> StepBatch:
        """Wait for all slots that are not `held`: then all are held, unless the run has to stop."""
        self.flush()
        if self.num_in_flight == 0 or self._stop.is_requested:
            return held
        held = copied(held)  # its arrays hold until the next `recv` only
        with self._clock.time("simulation"):
            batch = self.pool.recv(min_slots=self.num_in_flight)
        self.observe(batch)
        self.flush()
        return union([held, batch])

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is StopRun:
            self.flush()  # the checkpoint has the states of all slots that are not in flight

    def rank_state(self, *, stopped: bool) -> dict[str, Any]:
        """This rank's slots. If the training loop was `stopped` in an iteration, its collected rows are dropped."""
        keeps = self._buffer is not None and isinstance(self._buffer.layout, Variable) and not stopped
        if keeps and not self.pool.spec.turn_based:
            assert self.num_in_flight == 0, f"{self.num_in_flight} slots have a row in flight"
        generator = self.actor.inference.generator
        return {
            "numbers": [] if generator is None else [generator.get_state()],
            "actor": self.actor.state_dict(),
            "rollout": self._buffer.state_dict() if keeps and self._buffer is not None else None,
        }

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Continue the random numbers of a saved sampler. Slots begin new episodes."""
        if self.actor.inference.generator is not None and state.get("numbers"):
            self.actor.inference.generator.set_state(state["numbers"][0])

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None:
        """The simulators are where they were when `state` was saved. Only the slots in `anew` begin new episodes."""
        self.actor.load_state_dict(state["actor"])
        if len(anew):
            self.actor.start_anew(anew)
        else:
            self._restored = state["rollout"]

    def observe_stopped(self, batch: StepBatch) -> None:
        self.actor.observe(batch)

    def saved(self, state: dict[str, Any]) -> None:
        """A checkpoint with this state was written."""

    def close(self) -> None:
        """Nothing to close."""


def device_generator(device: torch.device) -> torch.Generator:
    """Random numbers on a device that follow from those of the host."""
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
