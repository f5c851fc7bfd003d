"""Turns of slots on the policy's device: a decision begins rows of a rollout, what came of it completes them.

`StepByStep` goes through the actor and the rollout, one operation after the other. On a GPU each of these is a launch, some fifty
of them a turn, which takes several times as long as the network does; `Recorded` replays a whole turn as one graph: what came of
the last decisions, and the next ones. `SendFirst` does the same as the first in another order, for perceptrons on a CPU. All leave
the same in the actor and in the rollout.

Legend: N slots, B slots of a batch, P places of a recording (P >= B), D numbers of recurrent state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from paceline.accel.cuda_graph import CudaGraph
from paceline.accel.perceptron import Act, Perceptron
from paceline.collect.actor import Actor
from paceline.collect.chooser import bucket_of, choose
from paceline.experience.chunks import ChunkBatch, Chunks
from paceline.experience.layouts import Rows, Variable
from paceline.experience.rollout import Rollout
from paceline.experience.rows import Decision, Outcome, as_tensor
from paceline.pool.batches import copied, without_obs
from paceline.pool.protocol import StepBatch


class Acting(Protocol):
    """Decides for batches of a pool whose simulators are on the host, and takes in what comes of it."""

    def decide(self, batch: StepBatch) -> Mapping[str, Any]:
        """Actions as the pool takes them, until the next call; after `note` there is a row for every slot of `batch`."""
        ...

    def note(self) -> None:
        """What is left to be done of that decision, while simulators step: once after each `decide`, when its actions are sent."""
        ...

    def complete(self, batch: StepBatch) -> None:
        """The rows that are in flight of the slots of `batch` have their outcomes; who starts anew has a fresh state. That may
        wait for the next decision: nobody is to look at those rows and states before that, or before `flush`."""
        ...

    def flush(self) -> None:
        """Whatever was completed is in the rollout, and with the actor."""
        ...


def make_acting(actor: Actor, rollout: Rollout, *, recorded: bool) -> Acting:
    """The fastest for this actor. `recorded`: whether it may be, which is not the same to the bit."""
    if actor.chooser.perceptron is not None:
        return SendFirst(actor, rollout, actor.chooser.perceptron)
    if recorded and actor.chooser.is_recorded:
        return Recorded(actor, rollout)
    return StepByStep(actor, rollout)


class StepByStep:
    """An `Acting` by the actor's and the rollout's own operations."""

    def __init__(self, actor: Actor, rollout: Rollout) -> None:
        self._actor, self._rollout = actor, rollout
        self._decided: tuple[Decision, Rows] | None = None

    def decide(self, batch: StepBatch) -> Mapping[str, Any]:
        assert self._decided is None, "the last decision was not noted"
        decision = self._actor.decide(batch)
        self._decided = decision, self._rollout.open(decision, batch)
        return self._actor.env_actions(decision.actions, batch)

    def note(self) -> None:
        assert self._decided is not None
        self._rollout.note(*self._decided)
        self._decided = None

    def complete(self, batch: StepBatch) -> None:
        self._rollout.complete(self._actor.observe(batch), batch)

    def flush(self) -> None:
        """Nothing waits."""


class Undertaking(NamedTuple):
    """What a perceptron does for the slots of a batch, before it is written down."""

    batch: StepBatch
    """A copy: the simulators have the memory again."""
    obs: dict[str, Tensor]
    """Of that batch."""
    act: Act
    """What is to be done, and what is left to be computed."""


class SendFirst:
    """An `Acting` for perceptrons on a CPU, of which most take less time to decide than to write it down: simulators get their actions
    first, and all else is done while they step, outcomes of the last step and values included. The result is the same to the bit."""

    def __init__(self, actor: Actor, rollout: Rollout, perceptron: Perceptron) -> None:
        self._actor, self._rollout, self._perceptron = actor, rollout, perceptron
        self._starts = actor.make_room()[1].numpy()
        """[N + 1] bool: the actor's own memory."""
        self._decided: Undertaking | None = None
        self._came: list[tuple[StepBatch, Rows]] = []
        """Outcomes that are not written down yet, and whose they are."""

    def decide(self, batch: StepBatch) -> Mapping[str, Any]:
        assert self._decided is None, "the last decision was not noted"
        kept = copied(batch)
        obs = {name: torch.from_numpy(values) for name, values in kept.obs.items()}
        act = self._perceptron.act(obs)
        self._decided = Undertaking(kept, obs, act)
        return act.drawn.env_actions

    def note(self) -> None:
        assert self._decided is not None
        self.flush()
        batch, obs, act = self._decided
        self._decided = None
        self._actor.note_active(batch)
        log_prob, value = self._perceptron.judge(act)
        decision = Decision(
            obs=obs,
            actions=act.drawn.actions,
            log_prob=log_prob,
            value=value,
            state=self._actor.state[: len(batch)],  # of which there is nothing
            episode_start=torch.from_numpy(self._starts[batch.slots]),
            active=torch.from_numpy(batch.active),
            version=self._actor.chooser.policy.version,
        )
        self._rollout.begin(decision, batch)

    def complete(self, batch: StepBatch) -> None:
        assert not isinstance(self._rollout.book, ChunkBatch)
        rows = self._rollout.book.complete(batch)
        if batch.truncated.any():  # where they were cut is the pool's memory
            cuts = self._actor.cuts(batch)
            assert cuts is not None
            self._rollout.note_cuts(cuts, rows)
        self._came.append((without_obs(batch), rows))

    def flush(self) -> None:
        for batch, rows in self._came:
            outcome = Outcome(
                reward=torch.from_numpy(batch.reward),
                terminated=torch.from_numpy(batch.terminated),
                truncated=torch.from_numpy(batch.truncated),
                lost=torch.from_numpy(batch.lost) if batch.lost.any() else None,
            )
            self._rollout.note_outcome(outcome, rows)
            self._starts[batch.slots] = self._actor.fresh(batch)
        self._came.clear()


class Recording(Protocol):
    """What was recorded, to be done again."""

    def run(self) -> None: ...


class Recorded:
    """An `Acting` by recordings for few numbers of places. The rollout has a spare row, and the actor gets a spare slot: there
    goes what the places beyond a batch compute."""

    def __init__(
        self,
        actor: Actor,
        rollout: Rollout,
        record: Callable[[Callable[[], None]], Recording] | None = None,
    ) -> None:
        assert isinstance(rollout.book, (Chunks, Variable)) and len(rollout.valid) > rollout.book.capacity
        self._actor, self._rollout, self._book = actor, rollout, rollout.book
        self._record = record or partial(CudaGraph, generator=actor.chooser.generator)
        self._policy = actor.chooser.policy
        self._state, self._starts = actor.make_room()
        slots, self._spare_row = rollout.num_slots, rollout.book.capacity
        self._num_slots = slots
        whose = {"rows": np.int64, "slots": np.int64}
        flags = dict.fromkeys(("terminated", "truncated", "lost", "fresh"), np.bool_)
        device = self._state.device
        self._asked = Letter(slots, {**whose, "active": np.bool_}, device)
        self._came = Letter(slots, {**whose, "reward": np.float32, **flags}, device)
        self._obs: dict[str, Tensor] = {}
        """[N, ...] on the device, by place."""
        self._actions: dict[str, Tensor] = {}
        """[N, ...] on the host, by place: what was decided last, as the pool takes it."""
        self._turns: dict[int, Recording] = {}
        self._outcomes: dict[int, Recording] = {}
        self._waiting = 0
        """Places of `_came` that no recording has taken in yet."""
        self._is_posted = False
        """Whether `_came` may still be on its way."""
        # Asleep, not by spinning: simulators have a use for the core.
        self._done = torch.cuda.Event(blocking=True) if device.type == "cuda" else None
        self._name_nobody(self._came, 0)

    def decide(self, batch: StepBatch) -> Mapping[str, Any]:
        count = len(batch)
        if not self._obs:
            self._lay_out(batch)
        places = bucket_of(count, self._num_slots)
        if self._waiting > places:
            self.flush()
        if not self._waiting:
            self._be_free()
            self._name_nobody(self._came, 0)
        self._address(self._asked, batch, self._book.begin(batch))
        self._asked.host["active"][:count] = batch.active
        self._actor.note_active(batch)
        with self._actor.clock.time("transfer"):
            for name, values in batch.obs.items():
                self._obs[name][:count].copy_(as_tensor(values), non_blocking=True)
        if places not in self._turns:
            self._turns[places] = self._record(lambda: self._turn(places))
        self._turns[places].run()
        self._waiting = 0
        self._wait()
        return {name: values[:count].numpy() for name, values in self._actions.items()}

    def note(self) -> None:
        """Everything is in the recording."""

    def complete(self, batch: StepBatch) -> None:
        self.flush()
        self._be_free()
        rows, count = self._book.complete(batch), len(batch)
        cuts = self._actor.cuts(batch)
        if cuts is not None:
            self._rollout.note_cuts(cuts, rows)
        self._address(self._came, batch, rows)
        came = self._came.host
        for name in ("reward", "terminated", "truncated", "lost"):
            came[name][:count] = getattr(batch, name)
        came["fresh"][:count] = self._actor.fresh(batch)
        self._waiting = count

    def flush(self) -> None:
        if self._waiting:
            places = bucket_of(self._waiting, self._num_slots)
            if places not in self._outcomes:
                self._outcomes[places] = self._record(lambda: self._write_outcomes(places))
            self._outcomes[places].run()
            self._waiting, self._is_posted = 0, True

    # ---------------------------------------------------------------- what is recorded

    @torch.no_grad()
    def _turn(self, places: int) -> None:
        self._write_outcomes(places)
        self._asked.post()
        table, policy = self._rollout, self._policy
        asked = self._asked.places(places)
        rows, slots = asked["rows"], asked["slots"]
        obs = {name: values[:places] for name, values in self._obs.items()}
        state, starts = self._state[slots], self._starts[slots]
        choice = choose(policy, obs, state, self._actor.chooser.generator)
        for name, values in policy.head.env_actions(choice.actions).items():
            self._actions[name][:places].copy_(values, non_blocking=True)
        for columns, by_name in ((table.obs, obs), (table.actions, choice.actions)):
            for name, column in columns.items():
                column.index_copy_(0, rows, by_name[name])
        for column, values in (
            (table.log_prob, choice.log_prob),
            (table.value, choice.value),
            (table.episode_start, starts),
            (table.valid, asked["active"]),
            (table.version, policy.version.expand(places)),
        ):
            column.index_copy_(0, rows, values)
        if self._state.shape[1]:
            table.state.index_copy_(0, rows, state)
            self._state.index_copy_(0, slots, choice.state)

    @torch.no_grad()
    def _write_outcomes(self, places: int) -> None:
        self._came.post()
        table, came = self._rollout, self._came.places(places)
        rows, slots, fresh = came["rows"], came["slots"], came["fresh"]
        for column, values in (
            (table.reward, came["reward"]),
            (table.terminated, came["terminated"]),
            (table.truncated, came["truncated"]),
            (table.valid, table.valid[rows] & ~came["lost"]),
        ):
            column.index_copy_(0, rows, values)
        self._starts.index_copy_(0, slots, fresh)
        if self._state.shape[1]:
            self._state.index_copy_(0, slots, torch.where(fresh[:, None], 0.0, self._state[slots]))

    # ---------------------------------------------------------------- around it

    def _address(self, letter: Letter, batch: StepBatch, rows: Rows) -> None:
        """Say whose places are the first ones; the others are nobody's."""
        count = len(batch)
        letter.host["rows"][:count] = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows.numpy()
        letter.host["slots"][:count] = batch.slots
        self._name_nobody(letter, count)

    def _name_nobody(self, letter: Letter, first: int) -> None:
        letter.host["rows"][first:] = self._spare_row
        letter.host["slots"][first:] = self._num_slots

    @torch.no_grad()
    def _lay_out(self, batch: StepBatch) -> None:
        """What depends on how observations and actions look."""
        device, slots = self._state.device, self._num_slots
        for name, values in batch.obs.items():
            example = as_tensor(values)
            self._obs[name] = torch.zeros((slots, *example.shape[1:]), dtype=example.dtype, device=device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):  # nothing is decided here
            chosen = choose(self._policy, self._obs, self._state[:slots]).actions
        self._rollout.make_columns(self._obs, chosen, self._state)
        self._actions = {
            name: torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
            for name, values in self._policy.head.env_actions(chosen).items()
        }

    def _be_free(self) -> None:
        """`_came` may be written to."""
        if self._is_posted:
            self._wait()

    def _wait(self) -> None:
        """Until the device has done everything."""
        if self._done is not None:
            self._done.record()
            self._done.synchronize()
        self._is_posted = False


class Letter:
    """Arrays of N cells in one piece of memory on the host, and the same on the device: they travel in one copy."""

    def __init__(self, cells: int, fields: Mapping[str, Any], device: torch.device) -> None:
        sizes = [cells * np.dtype(kind).itemsize for kind in fields.values()]
        begins = np.cumsum([0, *(-(-size // 16) * 16 for size in sizes)]).tolist()
        self._here = torch.zeros(begins[-1], dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._there = torch.zeros(begins[-1], dtype=torch.uint8, device=device)
        spans = {name: slice(begin, begin + size) for name, begin, size in zip(fields, begins[:-1], sizes, strict=True)}
        self.host = {name: self._here.numpy()[spans[name]].view(kind) for name, kind in fields.items()}
        """[N] by name, to be written; until it has arrived it is not to be written again."""
        like = {name: torch.from_numpy(array).dtype for name, array in self.host.items()}
        self._device = {name: self._there[spans[name]].view(like[name]) for name in fields}

    def post(self) -> None:
        self._there.copy_(self._here, non_blocking=True)

    def places(self, count: int) -> dict[str, Tensor]:
        """The first so many cells of every array, on the device."""
        return {name: array[:count] for name, array in self._device.items()}
