"""`Sampler`: acts for slots and writes rows. It owns the state of every slot, and never learns.

Every slot is held by the caller, or in flight. With several policies, a `PolicyAssignment` says which one acts in a
slot. Each policy then acts for its part of a batch, and the simulators get all actions at once. Policies of one kind of
agents act together where `make_acting` can. Each kind has a buffer of its own, in which slots have the kind's own
numbers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from paceline.collect.acting import Acting, make_acting
from paceline.collect.actor import Actor
from paceline.collect.batching import AdaptiveBatching
from paceline.collect.config import BatchingConfig
from paceline.collect.kind_slots import KindSlots, all_kinds
from paceline.collect.policy_assignment import Finished, PolicyAssignment
from paceline.experience.layouts import Variable
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.pool.batches import copied, inactive, merge_actions, union
from paceline.pool.protocol import Array, Pool, StepBatch
from paceline.stop import Stop, StopRun

log = logging.getLogger(__name__)


class Sampler:
    """Acts for the slots of a pool. `fill` says which buffers it writes to."""

    def __init__(
        self,
        pool: Pool,
        actors: Sequence[Actor],
        stop: Stop,
        batching: BatchingConfig,
        *,
        refresh_weights: Callable[[], object],
        recorded: bool,
        assignment: PolicyAssignment | None = None,
        learned: Collection[int] | None = None,
        assigned: Callable[[np.ndarray], None] = lambda slots: None,
    ) -> None:
        """One actor for each policy; several need an `assignment`. Rows of the policies `learned` are written, by
        default of all. `refresh_weights` is called before each decision. `recorded` says whether acting may be recorded
        on a GPU. `assigned` is called with the slots in which other policies act from now on."""
        self._assigned = assigned
        self.pool, self.actors, self.assignment = pool, list(actors), assignment
        self._learned = set(range(len(self.actors)) if learned is None else learned)
        self._stop, self._clock = stop, actors[0].clock
        self._refresh_weights, self._recorded = refresh_weights, recorded
        self._batching_config, self._batching = batching, AdaptiveBatching(pool, batching)
        self._kinds = all_kinds(pool.spec)
        self._teams = np.arange(len(self.actors))
        """By policy: the first of those that it acts together with."""
        self._buffers: Sequence[RolloutBuffer] = []
        """By kind."""
        self._restored: list[dict[str, Any] | None] = []
        """By kind: the saved rollouts that `fill` continues."""

    def fill(self, buffers: Sequence[RolloutBuffer], *, learner_shares_cores: bool = False) -> None:
        """Write rows to `buffers` from now on, one for each kind. If rollouts were restored that fit, they continue.

        `learner_shares_cores`: a learner computes on the cores of the simulators meanwhile.
        """
        assert len(buffers) == len(self._kinds)
        self._buffers = buffers
        self._batching = AdaptiveBatching(self.pool, self._batching_config, learner_shares_cores=learner_shares_cores)
        if self.assignment is not None:
            for buffer, policies in zip(buffers, self.assignment.by_kind, strict=True):
                buffer.layout.policies = policies
        self._acting: dict[int, Acting] = {}
        """By the first policy of a team."""
        for kind, buffer in zip(self._kinds, buffers, strict=True):
            self._make_acting(list(kind.policies(len(self.actors))), buffer)
        self._acted: list[Acting] = []
        """Those that the last `act` has used."""
        for buffer, state in zip(buffers, self._restored, strict=False):
            if state is not None and isinstance(buffer.layout, Variable):
                buffer.load_state_dict(state)
        self._restored = []

    def _make_acting(self, policies: list[int], buffer: RolloutBuffer) -> None:
        """For the policies of one kind of agents: those that learn, and those that do not."""
        for learned in (True, False):
            own = {policy: self.actors[policy] for policy in policies if (policy in self._learned) == learned}
            on_device = self.pool.spec.on_device
            actings = make_acting(own, buffer, learned=learned, recorded=self._recorded, on_device=on_device)
            for team, acting in actings.items():
                self._teams[list(team)] = team[0]
                self._acting[team[0]] = acting

    def begin(self, held: StepBatch) -> None:
        """`held` is the first batch. Slots that it lacks have waited for their turn since before a checkpoint.

        If the rows of their decisions were not saved, they have inactive rows, which are not experience. Their next
        decisions are the first of episodes.
        """
        missing = np.setdiff1d(np.arange(self.pool.spec.num_slots), held.slots)
        for kind, buffer in zip(self._kinds, self._buffers, strict=True):
            waiting = kind.local(missing)
            waiting = waiting[buffer.layout.is_idle(waiting)]
            if len(waiting):
                stand_in = inactive(waiting)
                for policy in kind.policies(len(self.actors)):
                    self.actors[policy].remember_active(stand_in)
                buffer.begin_inactive(stand_in)

    @property
    def num_in_flight(self) -> int:
        return sum(buffer.layout.num_in_flight for buffer in self._buffers)

    def act(self, batch: StepBatch) -> None:
        """Choose actions for `batch` by the latest weights, send them, and write rows while simulators step."""
        with self._clock.time("inference"):
            self._batching.begin_decision()
            self._refresh_weights()
            actions = self._choose(batch)
        with self._clock.time("simulation"):
            self.pool.send(actions, batch.slots)
        with self._clock.time("inference"):
            for acting in self._acted:
                acting.write_decisions()

    def _choose(self, batch: StepBatch) -> Mapping[str, Any]:
        """The actions of every policy for its part of the batch."""
        if self.assignment is None:
            self._acted = [self._acting[0]]
            self._acting[0].start(batch)
            return self._acting[0].actions()
        parts = self.assignment.parts(batch, obs="shared", teams=self._teams)
        self._acted = [self._acting[part.policy] for part in parts]
        for acting, part in zip(self._acted, parts, strict=True):
            acting.start(part.batch)
        if len(parts) == 1 and len(self._kinds) == 1:
            return self._acted[0].actions()
        chosen = [acting.actions() for acting in self._acted]
        if len(self._kinds) > 1:
            kinds = [self._kind_of(part.policy).kind for part in parts]
            rows = [part.rows for part in parts]
            return merge_actions(self.pool.spec, len(batch), list(zip(kinds, rows, chosen, strict=True)))
        merged: dict[str, Array] = {}
        for part, actions in zip(parts, chosen, strict=True):
            for name, values in actions.items():
                if name not in merged:
                    merged[name] = _empty_like(values, len(batch))
                merged[name][part.rows] = values
        return merged

    def _kind_of(self, policy: int) -> KindSlots:
        return self._kinds[policy % len(self._kinds)]

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
        """Write the outcomes of the slots of `batch`. Where a match is over, policies are drawn for the next one."""
        if len(batch):
            with self._clock.time("inference"):
                if self.assignment is None:
                    self._acting[0].write_outcomes(batch)
                    return
                for part in self.assignment.parts(batch, obs="none", teams=self._teams):
                    self._acting[part.policy].write_outcomes(part.batch)
                self._assign(self.assignment.observe(batch))

    def _assign(self, changed: np.ndarray) -> None:
        """Other policies act in the slots `changed` from now on."""
        if len(changed) == 0:
            return
        for acting in self._acting.values():
            acting.flush()  # a chunk that is closed early may be learned from at once
        for kind, buffer in zip(self._kinds, self._buffers, strict=True):
            buffer.layout.end_streams(kind.local(changed))
        self._start_actors(changed)

    def _start_actors(self, slots: np.ndarray) -> None:
        """The actors of a team share the memory of their slots."""
        assert self.assignment is not None
        self._assigned(slots)
        teams = self._teams[self.assignment.policies[slots]]
        for team in np.unique(teams).tolist():
            self.actors[team].start_anew(self._kind_of(team).local(slots[teams == team]))

    def flush(self) -> None:
        """Write all deferred outcomes to the buffer."""
        with self._clock.time("inference"):
            for acting in self._acting.values():
                acting.flush()
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

    def take_finished(self) -> Finished:
        """Episodes and matches that ended in batches received since the last call."""
        episodes = self.pool.take_episodes()
        return Finished(episodes) if self.assignment is None else self.assignment.take_finished(episodes)

    @property
    def has_advanced(self) -> bool:
        """No: the rows of a stopped iteration are dropped."""
        return False

    def rank_state(self, *, stopped: bool) -> dict[str, Any]:
        """This rank's slots. If the training loop was `stopped` in an iteration, its collected rows are dropped."""
        keeps = bool(self._buffers) and isinstance(self._buffers[0].layout, Variable) and not stopped
        if keeps and not self.pool.spec.turn_based:
            assert self.num_in_flight == 0, f"{self.num_in_flight} slots have a row in flight"
        first, *others = [buffer.state_dict() if keeps else None for buffer in self._buffers] or [None]
        state: dict[str, Any] = {
            "numbers": [generator.get_state() for generator in self._generators],
            "actor": self.actors[0].state_dict(),
            "rollout": first,
        }
        if others:
            state["other_rollouts"] = others
        if self.assignment is not None:
            state["assignment"] = self.assignment.state_dict()
            state["other_actors"] = [actor.state_dict() for actor in self.actors[1:]]
        return state

    def load_rank_state(self, state: dict[str, Any]) -> None:
        """Continue the random numbers of a saved sampler. Slots begin new episodes."""
        for generator, saved in zip(self._generators, state.get("numbers", []), strict=False):
            generator.set_state(saved)

    @property
    def _generators(self) -> list[torch.Generator]:
        """Those of the actors that have one. Opponents may share one."""
        found = [actor.inference.generator for actor in self.actors if isinstance(actor, Actor)]
        return list({id(generator): generator for generator in found if generator is not None}.values())

    def restore_episodes(self, state: dict[str, Any], anew: np.ndarray) -> None:
        """The simulators are where they were when `state` was saved. Only the slots in `anew` begin new episodes."""
        saved = [state["actor"], *state.get("other_actors", [])]
        if len(saved) != len(self.actors) or ("assignment" in state) != (self.assignment is not None):
            log.warning("the run has other opponents than its checkpoint: all matches are drawn anew")
            self._start_anew(np.arange(self.pool.spec.num_slots))
            return
        problem = None if self.assignment is None else self.assignment.why_not_continued(state["assignment"])
        if problem is not None:
            log.warning("%s: all matches are drawn anew", problem)
            self._start_anew(np.arange(self.pool.spec.num_slots))
            return
        for actor, own in zip(self.actors, saved, strict=True):
            actor.load_state_dict(own)
        if self.assignment is not None:
            self.assignment.load_state_dict(state["assignment"])
        if len(anew):
            self._start_anew(anew)
        else:
            self._restored = [state["rollout"], *state.get("other_rollouts", [])]

    def _start_anew(self, slots: np.ndarray) -> None:
        if self.assignment is None:
            self.actors[0].start_anew(slots)
            return
        self.assignment.start_anew(slots)
        self._start_actors(slots)

    def observe_stopped(self, batch: StepBatch) -> None:
        if self.assignment is None:
            self.actors[0].observe(batch)
            return
        for part in self.assignment.parts(batch):
            self.actors[part.policy].observe(part.batch)
        if len(changed := self.assignment.observe(batch)):
            self._start_actors(changed)

    def saved(self, state: dict[str, Any]) -> None:
        """A checkpoint with this state was written."""

    def close(self) -> None:
        """Nothing to close."""


def _empty_like(values: Array, count: int) -> Array:
    """Room for `count` actions that look like `values`."""
    shape = (count, *values.shape[1:])
    return values.new_empty(shape) if isinstance(values, torch.Tensor) else np.empty(shape, values.dtype)


def device_generator(device: torch.device) -> torch.Generator:
    """Random numbers on a device that follow from those of the host."""
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
