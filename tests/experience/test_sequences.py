"""Mini-batches hold every valid row once; sequences are never continued from another episode's state."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.experience.rows import Outcome
from paceline.experience.sequences import shuffled_rows, shuffled_sequences
from tests.experience.rollouts import Rollout
from tests.experience.test_rollout import CPU, decision


def random_rollout(seed: int, turns: int, num_slots: int, faults: bool) -> Rollout:
    """States are identifiable: the row's own number, zero at episode starts, as an actor would store them."""
    rng = np.random.default_rng(seed)
    rollout = Rollout(turns, num_slots, CPU)
    starts = rng.random((turns, num_slots)) < 0.25
    for t in range(turns):
        rows = torch.arange(t * num_slots, (t + 1) * num_slots)
        state = torch.where(torch.tensor(starts[t]), 0, rows + 1)[:, None].float()
        active = rng.random(num_slots) > (0.1 if faults else -1)
        rollout.begin(decision([0.0] * num_slots, starts=starts[t].tolist(), state=state, actives=active.tolist()))
        lost = torch.tensor(rng.random(num_slots) < (0.1 if faults else 0.0))
        never = torch.zeros(num_slots, dtype=torch.bool)
        rollout.complete(Outcome(reward=torch.zeros(num_slots), terminated=never, truncated=never, lost=lost))
    rollout.select()
    return rollout


cases = {
    "seed": st.integers(0, 2**32 - 1),
    "turns": st.integers(1, 10),
    "num_slots": st.integers(1, 5),
    "count": st.integers(1, 4),
    "faults": st.booleans(),
}


@settings(max_examples=100)
@given(**cases)
def test_every_valid_row_is_trained_on_once(seed, turns, num_slots, count, faults):
    rollout = random_rollout(seed, turns, num_slots, faults)
    valid = torch.nonzero(rollout.valid).squeeze(1).tolist()
    for split in (shuffled_rows, shuffled_sequences):
        if len(valid) < count:
            continue
        batches = list(split(rollout, count, torch.Generator().manual_seed(seed % 1000)))
        sizes = [len(batch.rows) for batch in batches]
        assert len(batches) == count and max(sizes) - min(sizes) <= 1
        assert sorted(torch.cat([batch.rows for batch in batches]).tolist()) == valid


@settings(max_examples=100)
@given(**cases)
def test_sequences_run_on_within_one_episode_of_one_slot(seed, turns, num_slots, count, faults):
    """Mistakes 16, 17: unpacked, every sequence is consecutive turns of a slot, with an episode start only in front."""
    rollout = random_rollout(seed, turns, num_slots, faults)
    if int(rollout.valid.sum()) < count:
        return
    for batch in shuffled_sequences(rollout, count, None):
        assert batch.batch_sizes is not None and batch.starts is not None
        unpacked: list[list[int]] = [[] for _ in range(int(batch.batch_sizes[0]))]
        at = 0
        for size in batch.batch_sizes.tolist():
            for sequence in range(size):
                unpacked[sequence].append(int(batch.rows[at]))
                at += 1
        assert at == len(batch.rows)
        assert [rows[0] for rows in unpacked] == batch.starts.tolist()
        for rows in unpacked:
            assert np.all(np.diff(rows) == num_slots)
            assert not rollout.episode_start[rows[1:]].any()
            expected = 0.0 if rollout.episode_start[rows[0]] else rows[0] + 1
            assert rollout.state[rows[0]].item() == expected, "the state stored before that very row"
