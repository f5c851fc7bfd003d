"""Chunks against a record of the same streams: no row is mixed, lost, given twice or overwritten while it is read."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.experience.chunks import Chunks
from paceline.experience.rollout_buffer import RolloutBuffer
from paceline.experience.sequences import sequences, shuffled_columns
from paceline.experience.training_batch import TrainingBatch
from tests.experience.oracle import lambda_advantages
from tests.experience.test_variable import CPU, World, name_of, usable


def play(seed: int, steps: int, slots: int, size: int, waiting: int, turns: int):
    """Random batches of slots, and batches of chunks as they become full, at most `waiting` and one more at a time;
    yields each with the world, before it is released."""
    world = World(np.random.default_rng(seed), slots, faults=True)
    book = Chunks(steps, slots, size, waiting)
    rollout = RolloutBuffer(book, CPU)
    held, offered = world.batch(list(range(slots))), deque()
    for _ in range(turns):
        while book.num_full() >= size:
            if len(offered) > waiting:
                batch = offered.popleft()
                yield world, rollout, batch
                book.release(batch[0])
            selection = book.take(size)
            offered.append((selection, rollout.take_truncations(selection)))
        rollout.begin(world.decide(held), held)
        flying = [slot for slot in range(slots) if world.account[slot] and world.account[slot][-1].end == "pending"]
        assert book.num_in_flight == len(flying)
        chosen = sorted(world.rng.choice(flying, int(world.rng.integers(1, len(flying) + 1)), replace=False).tolist())
        held, outcome = world.answer(chosen)
        rollout.complete(outcome, held)
    while offered:
        yield world, rollout, offered.popleft()


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(1, 6), st.integers(1, 8), st.integers(0, 2))
def test_every_decision_is_in_one_chunk_in_order(seed, steps, slots, size, waiting):
    """All decisions of a slot, T at a time, each once; rows are what was decided, whatever was written meanwhile."""
    seen = dict.fromkeys(range(slots), 0)
    for world, rollout, batch in play(seed, steps, slots, size, waiting, turns=60):
        book = batch[0]
        assert book.rows.shape == (steps, size)
        for column in range(size):
            slot = int(book.slots[column])
            rows = torch.from_numpy(book.rows[:, column])
            names = [name_of(slot, seen[slot] + t) for t in range(steps)]
            assert rollout.log_prob[rows].tolist() == names
            account = world.account[slot][seen[slot] : seen[slot] + steps]
            assert rollout.valid[rows].tolist() == [usable(step) for step in account]
            after = book.following[column]
            assert rollout.log_prob[after].item() == name_of(slot, seen[slot] + steps), "what its slot went on with"
            seen[slot] += steps


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 8))
def test_targets_of_a_batch_are_the_oracles(seed, steps, slots, size):
    """With all kinds of ends. The end of a chunk bootstraps V of the slot's next observation."""
    view, seen = None, dict.fromkeys(range(slots), 0)
    for world, rollout, batch in play(seed, steps, slots, size, 1, turns=40):
        view = view or TrainingBatch(rollout)
        view.select(*batch)
        cuts = view.truncations
        cut_value = cuts.obs["name"][:, 0] if cuts is not None else None
        view.set_next_values(rollout.value[batch[0].following], cut_value)
        view.set_advantages(0.9, 0.8)
        for column in range(size):
            slot, rows = int(batch[0].slots[column]), batch[0].rows[:, column]
            account = world.account[slot][seen[slot] : seen[slot] + steps + 1]
            expected = lambda_advantages(account[:-1], account[-1].value, 0.9, 0.8)
            torch.testing.assert_close(view.advantage[rows], torch.tensor(expected), rtol=1e-4, atol=1e-4)
            seen[slot] += steps
        assert int(view.valid.sum()) == int(rollout.valid[batch[0].rows].sum()), "it shows nothing else"


def test_columns_and_sequences_of_a_batch():
    for _, rollout, batch in play(3, 4, 3, 5, 1, turns=40):
        view = TrainingBatch(rollout)
        view.select(*batch)
        columns = torch.cat([part.rows.view(4, -1) for part in shuffled_columns(view, 2, None)], 1)
        assert sorted(columns[0].tolist()) == sorted(batch[0].rows[0].tolist())
        rows, lengths = sequences(view)
        assert int(lengths.sum()) == len(rows) == int(view.valid.sum())
        ends = torch.cumsum(lengths, 0)
        for begin, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True):
            part = rows[begin:end]
            names = rollout.log_prob[part]
            assert (names.diff() == 1).all(), "of one slot, decision after decision"
            assert len({int(torch.nonzero(torch.from_numpy(batch[0].rows) == row)[0, 1]) for row in part}) == 1, (
                "within one chunk"
            )
            assert not rollout.episode_start[part[1:]].any()


def test_two_chunks_of_a_slot_in_a_batch_are_in_order():
    """For running returns the older one comes first."""
    book = Chunks(2, 1, batch=2, waiting=1)
    world = World(np.random.default_rng(1), 1, faults=False)
    rollout = RolloutBuffer(book, CPU)
    for _ in range(5):
        held = world.batch([0])
        rollout.begin(world.decide(held), held)
        batch, outcome = world.answer([0])
        rollout.complete(outcome, batch)
    view = TrainingBatch(rollout)
    view.select(book.take(2), None)
    names = [rollout.log_prob[rows].item() for _, rows in view.in_turns()]
    assert names == [0.0, 1.0, 2.0, 3.0]


def test_rows_of_old_weights_are_left_out():
    _, rollout, batch = next(play(5, 4, 3, 2, 1, turns=40))
    view = TrainingBatch(rollout)
    view.select(*batch)
    before = int(view.valid.sum())
    rows = torch.from_numpy(batch[0].rows)
    rollout.version[rows] = torch.arange(rows.numel()).view(rows.shape)
    dropped = int(view.drop_older(torch.tensor(3)))
    assert dropped == int(rollout.valid[rows][rollout.version[rows] < 3].sum())
    assert int(view.valid.sum()) == before - dropped
    assert int(rollout.valid[rows].sum()) == before, "the table itself is as it was"


def test_a_slot_that_is_in_flight_cannot_begin():
    book = Chunks(2, 2, batch=1, waiting=1)
    world = World(np.random.default_rng(1), 2, faults=False)
    book.begin(world.batch([0]))
    with pytest.raises(AssertionError, match="in flight already"):
        book.begin(world.batch([0, 1]))
    with pytest.raises(AssertionError, match="no row in flight"):
        book.complete(world.batch([1]))


@pytest.mark.parametrize(("waiting", "batch"), [(0, 3), (2, 5)])
def test_the_rows_that_are_checked_for_memory_are_those_that_are_made(waiting, batch):
    assert Chunks.rows_needed(4, 6, batch, waiting) == Chunks(4, 6, batch, waiting).capacity
