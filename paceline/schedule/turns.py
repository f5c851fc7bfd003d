"""Turns of slots, for systems that serve whoever is ready: a decision begins rows and is sent, an outcome completes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from paceline.collect.acting import make_acting
from paceline.collect.batching import AdaptiveBatching
from paceline.collect.config import BatchingConfig
from paceline.collect.deciders import Deciders
from paceline.errors import UsageError
from paceline.experience.chunks import Chunks
from paceline.experience.layouts import Variable
from paceline.experience.rollout import Rollout
from paceline.pool.batches import copied, union, without_obs
from paceline.pool.protocol import StepBatch
from paceline.stop import StopRun

if TYPE_CHECKING:
    from paceline.agent.on_policy import OnPolicy
    from paceline.run import Run


class Turns:
    """Decides for slots and takes in what comes of it, in this thread or with `Deciders` beside it. Every slot is held by the
    caller, in flight, or being decided for."""

    def __init__(
        self, run: Run[OnPolicy], rollout: Rollout, book: Variable | Chunks, *, learning: bool = False
    ) -> None:
        """With `learning`, that goes on meanwhile on the same device."""
        self._pool, self._agent, self._clock, self._stop = run.pool, run.agent, run.clock, run.stop
        self._rollout, self._book = rollout, book
        self._on_cpu = run.group.device.type == "cpu"
        deciders = run.agent.deciders
        self._acting = make_acting(run.agent.actor, rollout, deciders, recorded=not run.config.deterministic)
        self._deciders: Deciders | None = None
        self._asked: torch.cuda.Event | None = None
        """When what was asked last is on the device; the pool's memory is not to change before."""
        if len(deciders) > 1:
            threads = max(1, run.threads // len(deciders))
            self._deciders = Deciders(run.agent.actor, deciders, threads, run.pool.wake)
        self._batching = AdaptiveBatching(
            run.pool, run.config.batching, self._deciders, learning=learning and self._on_cpu
        )

    def decide(self, batch: StepBatch) -> None:
        """Have actions chosen for the slots of `batch`, by the latest weights, and sent."""
        agent, actor = self._agent, self._agent.actor
        with self._clock.time("inference"):
            if self._deciders is None:
                self._batching.begin_decision()
                agent.pick_up()
                self._send(self._acting.decide(batch), batch)
                self._acting.note()
            else:
                # What is asked outlives the next `recv`: it is copied here, or was to the device.
                kept = copied(batch) if self._on_cpu else without_obs(batch)
                self._asked = self._deciders.give(actor.ask(kept if self._on_cpu else batch), kept)
                self._send_decided(wait=self._deciders.are_busy)

    def receive(
        self, most: int | None = None, seconds_left: float | None = None, first: np.ndarray | None = None
    ) -> StepBatch:
        """Slots with their outcomes, as `AdaptiveBatching.receive` has them: an empty batch also where something was decided
        meanwhile."""
        if self._deciders is not None and self._book.num_in_flight == 0:
            with self._clock.time("inference"):
                self._send_decided(wait=True)
            seconds_left = 0.0 if seconds_left is not None else None  # who counted has to count again
        if self._asked is not None:
            with self._clock.time("transfer"):
                self._asked.synchronize()
        with self._clock.time("simulation"):
            batch = self._batching.receive(self._book.num_in_flight, most, seconds_left, first)
        with self._clock.time("inference"):
            self._complete(batch)
            self._send_decided(wait=False)
        return batch

    def pause(self) -> None:
        """Send what is being decided: then every slot is held or in flight, nobody looks at the weights, and all outcomes are in
        the rollout."""
        with self._clock.time("inference"):
            while self._send_decided(wait=True):
                pass
            self._acting.flush()
        self._batching.pause()

    def take_in(self, held: StepBatch) -> StepBatch:
        """Wait for all slots that are not `held`: then all are, unless the run is to stop."""
        self.pause()
        in_flight = self._book.num_in_flight
        if in_flight == 0:
            return held
        held = copied(held)  # its arrays hold until the next `recv` only
        rest = [held]
        while (
            in_flight > 0 and not self._stop.is_requested
        ):  # a wait may have been ended for decisions that are made by now
            with self._clock.time("simulation"):
                batch = self._pool.recv(min_slots=in_flight)
            self._complete(batch)
            rest.append(copied(batch))
            in_flight = self._book.num_in_flight
        self._acting.flush()
        return union(rest)

    def close(self) -> None:
        if self._deciders is not None:
            self._deciders.close()

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is StopRun:
            self.pause()  # a checkpoint is saved, which has the states of all slots that are not in flight
        self.close()

    def _send_decided(self, *, wait: bool) -> bool:
        """Whether there was anything to send."""
        answers = self._deciders.take(wait=wait) if self._deciders is not None else []
        for answer in answers:
            self._send(answer.actions, answer.batch)
            decision = self._agent.actor.settle(answer.question, answer.choice, answer.version)
            self._rollout.begin(decision, answer.batch)
        return bool(answers)

    def _send(self, actions: Mapping[str, Any], batch: StepBatch) -> None:
        with self._clock.time("simulation"):
            self._pool.send(actions, batch.slots)

    def _complete(self, batch: StepBatch) -> None:
        if len(batch):
            self._acting.complete(batch)


def require_one_decider(batching: BatchingConfig) -> None:
    """Where simulators are batched, and decided for in lock-step."""
    if batching.inference_workers > 1:
        raise UsageError(
            "batching.inference_workers above 1 are for simulators in other processes; batched ones step in this one"
        )
