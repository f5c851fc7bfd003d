"""Variable rollouts against a slow record of the same streams: the invariants of docs/ver.md, on random schedules."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.experience.layouts import Variable
from paceline.experience.rows import Decision, Outcome, Truncations
from paceline.experience.sequences import sequences, shuffled_sequences
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.hyperparameters import ppo_hyperparameters
from paceline.learner.targets import Targets
from paceline.pool.protocol import StepBatch
from tests.experience.oracle import Step, lambda_advantages
from tests.experience.rollouts import Rollout

CPU = torch.device("cpu")


def name_of(slot: int, ordinal: int) -> float:
    """A number that says which decision of which slot this is."""
    return slot * 1000.0 + ordinal


@dataclass
class World:
    """N streams that answer in any order, and the account of what every decision came to."""

    rng: np.random.Generator
    num_slots: int
    faults: bool
    account: dict[int, list[Step]] = field(default_factory=lambda: defaultdict(list))
    """By slot: every decision so far; the last is in flight while its `end` is "pending"."""
    starts: dict[int, bool] = field(default_factory=lambda: defaultdict(lambda: True))

    def batch(self, slots: list[int], lost: list[bool] | None = None) -> StepBatch:
        empty = np.zeros(len(slots), bool)
        active = np.array([not self.faults or self.rng.random() > 0.1 for _ in slots], bool)
        return StepBatch(
            slots=np.array(slots, np.int64),
            obs={},
            reward=np.zeros(len(slots), np.float32),
            terminated=empty,
            truncated=empty,
            final_obs={},
            active=active,
            lost=empty if lost is None else np.array(lost, bool),
            step_seconds=np.zeros(len(slots), np.float32),
        )

    def decide(self, batch: StepBatch) -> Decision:
        names, values, starts = [], [], []
        for slot, active in zip(batch.slots.tolist(), batch.active.tolist(), strict=True):
            names.append(name_of(slot, len(self.account[slot])))
            values.append(float(self.rng.normal()))
            starts.append(self.starts[slot])
            self.starts[slot] = False
            self.account[slot].append(Step(values[-1], 0.0, "pending", 0.0, active))
        count = len(names)
        names = torch.tensor(names)
        return Decision(
            obs={"name": names[:, None]},
            actions={"action": names.long()},
            log_prob=names,
            value=torch.tensor(values, dtype=torch.float32),
            state=torch.where(torch.tensor(starts), 0.0, names + 0.5)[:, None],
            episode_start=torch.tensor(starts),
            active=torch.from_numpy(batch.active),
            version=torch.tensor(count),
        )

    def answer(self, slots: list[int]) -> tuple[StepBatch, Outcome]:
        ends = ["", "terminated", "truncated"] + (["lost"] if self.faults else [])
        for slot in slots:
            step = self.account[slot][-1]
            step.end = str(self.rng.choice(ends, p=[0.7, 0.15, 0.15] if len(ends) == 3 else [0.6, 0.15, 0.15, 0.1]))
            step.reward = name_of(slot, len(self.account[slot]) - 1) / 1000
            step.final_value = float(self.rng.normal())
            self.starts[slot] = bool(step.end)
        steps = [self.account[slot][-1] for slot in slots]
        cut = [at for at, step in enumerate(steps) if step.end == "truncated"]
        final = torch.tensor([[steps[at].final_value] for at in cut], dtype=torch.float32)
        lost = [step.end == "lost" for step in steps]
        outcome = Outcome(
            reward=torch.tensor([step.reward for step in steps]),
            terminated=torch.tensor([step.end == "terminated" for step in steps]),
            truncated=torch.tensor([step.end == "truncated" for step in steps]),
            lost=torch.tensor(lost),
            truncations=Truncations(rows=torch.tensor(cut), obs={"name": final}, state=torch.zeros(len(cut), 1))
            if cut
            else None,
        )
        return self.batch(slots, lost), outcome


def usable(step: Step) -> bool:
    return step.active and step.end not in ("lost", "pending")


def collect(
    rollout: Rollout, world: World, held: StepBatch, most: int, stop_after: int | None
) -> tuple[StepBatch, list[int]]:
    """One rollout of random batches; what is held at its end, and where each slot's account of it begins."""
    book = rollout.layout
    assert isinstance(book, Variable)
    carried = book._pending >= 0
    rollout.clear()
    begins = [len(world.account[slot]) - int(carried[slot]) for slot in range(world.num_slots)]
    turns = 0
    while True:
        if len(held.slots):
            rollout.begin(world.decide(held), held)
        flying = np.flatnonzero(book._pending >= 0)
        count = int(world.rng.integers(1, len(flying) + 1))
        count = min(count, most, book.goal - book.completed)
        slots = sorted(world.rng.choice(flying, count, replace=False).tolist())
        held, outcome = world.answer(slots)
        rollout.complete(outcome, held)
        turns += 1
        if book.is_full or turns == stop_after:
            return held, begins


def finish(rollout: Rollout, last_values: np.ndarray) -> None:
    cuts = rollout.cuts()
    cut_value = cuts.obs["name"][:, 0] if cuts is not None else None
    rollout.finish(torch.tensor(last_values, dtype=torch.float32), cuts, cut_value, discount=0.9, trace_decay=0.8)


class Values:
    """An actor that has nothing to say but zeros."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots

    def last_values(self, batch: StepBatch) -> torch.Tensor:
        return torch.zeros(self._num_slots)

    def truncated_values(self, cuts: Truncations) -> torch.Tensor:
        return torch.zeros(len(cuts.rows))


cases = {
    "seed": st.integers(0, 2**32 - 1),
    "steps": st.integers(1, 8),
    "num_slots": st.integers(1, 5),
    "faults": st.booleans(),
    "preempted": st.booleans(),
}


def rollouts(seed: int, steps: int, num_slots: int, faults: bool, preempted: bool, count: int = 4):
    """A world and `count` finished rollouts in it, one after the other in the same memory."""
    rng = np.random.default_rng(seed)
    world = World(rng, num_slots, faults)
    rollout = Rollout(steps, num_slots, CPU, layout=Variable(steps, num_slots, weighted=True), weighted=True)
    held = world.batch(list(range(num_slots)))
    for _ in range(count):
        stop_after = int(rng.integers(1, 6)) if preempted else None
        held, begins = collect(rollout, world, held, int(rng.integers(1, num_slots + 1)), stop_after)
        last_values = rng.normal(size=num_slots)
        finish(rollout, last_values)
        yield world, rollout, begins, last_values


@settings(max_examples=30)
@given(**cases)
def test_no_step_is_lost_and_none_is_there_twice(seed, steps, num_slots, faults, preempted):
    """Over all rollouts, the rows of a slot are its usable decisions, in order, each once."""
    seen = defaultdict(list)
    account: dict[int, list[Step]] = {}
    for world, rollout, _, _ in rollouts(seed, steps, num_slots, faults, preempted):
        account = world.account
        rows = rollout.valid_rows()
        assert len(rows) <= rollout.layout.completed <= steps * num_slots
        if not faults:
            assert len(rows) == rollout.layout.completed
            assert preempted or len(rows) == steps * num_slots
        for name in sorted(rollout.log_prob[rows].tolist()):
            seen[int(name // 1000)].append(int(name % 1000))
    for slot, decisions in account.items():
        assert seen[slot] == [ordinal for ordinal, step in enumerate(decisions) if usable(step)]


@settings(max_examples=20)
@given(**cases)
def test_every_row_has_its_own_outcome(seed, steps, num_slots, faults, preempted):
    for _, rollout, _, _ in rollouts(seed, steps, num_slots, faults, preempted):
        rows = rollout.valid_rows()
        torch.testing.assert_close(rollout.reward[rows], rollout.log_prob[rows] / 1000)
        assert torch.equal(rollout.obs["name"][rows, 0], rollout.log_prob[rows])
        assert torch.equal(rollout.actions["action"][rows].float(), rollout.log_prob[rows])


@settings(max_examples=30)
@given(**cases)
def test_advantages_equal_the_oracle(seed, steps, num_slots, faults, preempted):
    """A row in flight ends its slot's account at its own value; a held slot's account ends at V of what is held."""
    for world, rollout, begins, last_values in rollouts(seed, steps, num_slots, faults, preempted):
        expected = {}
        for slot in range(num_slots):
            account = world.account[slot][begins[slot] :]
            as_lost = [Step(s.value, s.reward, "lost", 0.0, s.active) if s.end == "pending" else s for s in account]
            for at, advantage in enumerate(lambda_advantages(as_lost, last_values[slot], 0.9, 0.8)):
                expected[name_of(slot, begins[slot] + at)] = advantage
        rows = rollout.valid_rows()
        wanted = torch.tensor([expected[name] for name in rollout.log_prob[rows].tolist()])
        torch.testing.assert_close(rollout.advantage[rows], wanted.float(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(rollout.returns[rows], rollout.advantage[rows] + rollout.value[rows])


@settings(max_examples=20)
@given(**cases)
def test_every_sequence_has_its_own_pre_step_state(seed, steps, num_slots, faults, preempted):
    """Mistakes 14, 16, 17: sequences are consecutive decisions of one slot in one episode and one rollout."""
    for _, rollout, _, _ in rollouts(seed, steps, num_slots, faults, preempted):
        rows, lengths = sequences(rollout)
        stale = rollout.stale if rollout.stale is not None else torch.zeros_like(rollout.valid)
        assert sorted(rows.tolist()) == torch.nonzero(rollout.valid | stale).squeeze(1).tolist()
        for sequence in torch.split(rows, lengths.tolist()):
            names = rollout.log_prob[sequence]
            assert (torch.diff(names) == 1).all()
            assert not rollout.episode_start[sequence[1:]].any()
            assert len(set(stale[sequence].tolist())) == 1
            first = sequence[0]
            assert rollout.state[first].item() == (0.0 if rollout.episode_start[first] else names[0].item() + 0.5)


@settings(max_examples=20)
@given(**cases)
def test_running_returns_go_on_through_rollouts(seed, steps, num_slots, faults, preempted):
    """Mistake 12: a slot's running return is that of its completed steps, whichever rollouts they are in."""
    rng = np.random.default_rng(seed)
    world = World(rng, num_slots, faults)
    rollout = Rollout(steps, num_slots, CPU, layout=Variable(steps, num_slots))
    config = PPOConfig(discount=0.9, normalize_returns=True)
    hyperparameters = ppo_hyperparameters(config, OptimizerConfig())
    targets = Targets(hyperparameters, Group(RankInfo(), CPU, None), num_slots)
    held = world.batch(list(range(num_slots)))
    for _ in range(4):
        held, _ = collect(rollout, world, held, num_slots, int(rng.integers(1, 6)) if preempted else None)
        targets.complete(rollout.select(), held, Values(num_slots))
    observed = 0
    for slot in range(num_slots):
        running = 0.0
        for step in world.account[slot]:
            if step.end == "pending":
                continue
            observed += usable(step)
            running = (0.9 * running + step.reward) if usable(step) else 0.0
            running = 0.0 if step.end in ("terminated", "truncated") else running
        assert targets._normalizer.running[slot].item() == pytest.approx(running, rel=1e-5, abs=1e-6)
    assert targets._normalizer.moments.count.item() == observed


@settings(max_examples=30)
@given(**cases)
def test_mini_batches_are_equal_parts(seed, steps, num_slots, faults, preempted):
    for _, rollout, _, _ in rollouts(seed, steps, num_slots, faults, preempted, count=2):
        sizes = [len(batch.rows) for batch in shuffled_sequences(rollout, 3, None)]
        assert max(sizes) - min(sizes) <= 1


@settings(max_examples=30)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(2, 8), num_slots=st.integers(1, 4))
def test_a_short_rollout_is_filled_with_the_one_before(seed, steps, num_slots):
    """Its latest rows, with the targets that they had; no row is both, and nothing older comes in (mistake 10)."""
    rng = np.random.default_rng(seed)
    world = World(rng, num_slots, faults=False)
    rollout = Rollout(steps, num_slots, CPU, layout=Variable(steps, num_slots))
    held = world.batch(list(range(num_slots)))
    targets: dict[float, float] = {}
    for short in (False, True):
        held, _ = collect(rollout, world, held, num_slots, 1 if short else None)
        finish(rollout, rng.normal(size=num_slots))
        if not short:
            assert rollout.stale is None
            rows = rollout.valid_rows()
            targets = dict(zip(rollout.log_prob[rows].tolist(), rollout.advantage[rows].tolist(), strict=True))
    rows = rollout.valid_rows()
    if rollout.stale is None:
        assert len(rows) == steps * num_slots
        return
    old = torch.nonzero(rollout.stale).squeeze(1)
    assert not (rollout.stale & rollout.valid).any()
    assert len(rows) + len(old) == steps * num_slots
    for row in old.tolist():
        assert targets[rollout.log_prob[row].item()] == rollout.advantage[row].item()


def test_only_the_rollout_before_fills_up():
    """Two short rollouts after a full one: what is left of the full one is too old."""
    rng = np.random.default_rng(1)
    world = World(rng, 2, faults=False)
    rollout = Rollout(8, 2, CPU, layout=Variable(8, 2))
    held = world.batch([0, 1])
    brought, filled = [], []
    for stop in (None, 2, 2):
        held, _ = collect(rollout, world, held, 2, stop)
        finish(rollout, rng.normal(size=2))
        brought.append(set(rollout.log_prob[rollout.valid_rows()].tolist()))
        filled.append(set(rollout.log_prob[rollout.stale].tolist()) if rollout.stale is not None else set())
    assert not filled[0] and len(brought[1] | filled[1]) == 16 and filled[1] <= brought[0]
    assert filled[2] == brought[1]


def test_slots_that_gave_more_than_their_share_weigh_less():
    """The truncated importance weights of the paper: at most 1, so that no slot counts for more than the mean."""
    book = Variable(4, 2, weighted=True)
    rollout = Rollout(4, 2, CPU, layout=book, weighted=True)
    world = World(np.random.default_rng(0), 2, faults=False)
    rollout.clear()
    held = world.batch([0, 1])
    for slots in ([0], [0], [0], [0], [0], [0, 1], [1]):
        rollout.begin(world.decide(held), held)
        held, outcome = world.answer(slots)
        rollout.complete(outcome, held)
    finish(rollout, np.zeros(2))
    assert book.collected.tolist() == [6, 2] and rollout.weight is not None
    rows = rollout.valid_rows()
    by_slot = {slot: rollout.weight[rows[rollout.log_prob[rows] // 1000 == slot]] for slot in (0, 1)}
    torch.testing.assert_close(by_slot[0], torch.full((6,), 4 / 6))
    assert by_slot[1].tolist() == [1.0, 1.0]


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), steps=st.integers(1, 6), num_slots=st.integers(1, 4))
def test_a_saved_rollout_goes_on_as_it_would_have(seed, steps, num_slots):
    """Saved between two rollouts with everything taken in: the next one is the same to the bit."""
    world = World(np.random.default_rng(seed), num_slots, faults=False)
    rollout = Rollout(steps, num_slots, CPU, layout=Variable(steps, num_slots, weighted=True), weighted=True)
    collect(rollout, world, world.batch(list(range(num_slots))), num_slots, None)
    finish(rollout, np.zeros(num_slots))
    flying = np.flatnonzero(rollout.layout._pending >= 0).tolist()
    rollout.clear()
    if flying:
        batch, outcome = world.answer(flying)
        rollout.complete(outcome, batch)
    copy = Rollout(steps, num_slots, CPU, layout=Variable(steps, num_slots, weighted=True), weighted=True)
    copy.buffer.load_state_dict(rollout.buffer.state_dict())
    everyone = world.batch(list(range(num_slots)))
    decision = world.decide(everyone)
    batch, outcome = world.answer(everyone.slots.tolist())
    for one in (rollout, copy):
        one.begin(decision, everyone)
        one.complete(outcome, batch)
        finish(one, np.ones(num_slots))
    rows = rollout.valid_rows()
    assert torch.equal(rows, copy.valid_rows()) and len(rows) == len(flying) + num_slots
    for column in ("advantage", "returns", "log_prob", "reward", "state", "weight"):
        assert torch.equal(getattr(rollout, column)[rows], getattr(copy, column)[rows])
    assert torch.equal(sequences(rollout)[1], sequences(copy)[1]) or rollout.stale is not None


def test_a_slot_cannot_be_begun_or_completed_twice():
    world = World(np.random.default_rng(0), 2, faults=False)
    rollout = Rollout(4, 2, CPU, layout=Variable(4, 2))
    both = world.batch([0, 1])
    rollout.begin(world.decide(both), both)
    with pytest.raises(AssertionError, match="in flight already"):
        rollout.begin(world.decide(both), both)
    one, outcome = world.answer([0])
    rollout.complete(outcome, one)
    with pytest.raises(AssertionError, match="no row in flight"):
        rollout.complete(outcome, one)


@pytest.mark.parametrize("kept", [0, 2])
def test_the_rows_that_are_checked_for_memory_are_those_that_are_made(kept):
    assert Variable.rows_needed(4, 6, kept) == Variable(4, 6, kept).capacity
