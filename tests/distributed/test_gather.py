"""Gathering states on rank 0: all types arrive unchanged, and nothing in them is executed."""

from __future__ import annotations

import pickle
from pathlib import Path

import torch

from paceline.distributed import gather as module
from paceline.distributed.gather import gather
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from tests.integration.ranks import on_ranks


def test_a_state_arrives_as_it_was():
    """The states have different lengths, and are longer than one part."""

    def work():
        module.PART_BYTES = 1000
        group = Group.join("cpu")
        gathered = gather(group, state(group.rank))
        group.close()
        return gathered

    def state(rank):
        return (
            {
                "rng": torch.get_rng_state(),
                "replay": {"rows": torch.full((100 * rank, 3), rank), 7: [1, 2.5, None, True, "text"]},
                "empty": b"",
            },
            b"\x00\xff" * (1000 * rank) if rank < 2 else None,
        )

    def same(one, other):
        if isinstance(one, torch.Tensor):
            return torch.equal(one, other) and one.dtype == other.dtype
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
        if isinstance(one, (list, tuple)):
            return type(one) is type(other) and all(same(*pair) for pair in zip(one, other, strict=True))
        return type(one) is type(other) and one == other

    first, *others = on_ranks(3, work)
    assert others == [[], []]
    assert [found[1] for found in first] == [b"", b"\x00\xff" * 1000, None]
    for rank, found in enumerate(first):
        expected = state(rank)
        expected[0]["rng"] = found[0]["rng"]  # random, and different in each process
        assert found[0]["rng"].dtype == torch.uint8 and same(found, expected)


def test_nothing_that_a_rank_sends_is_executed(tmp_path):
    executed = tmp_path / "executed"

    class Harm:
        def __reduce__(self):
            return Path.touch, (executed,)

    def work():
        group = Group.join("cpu")
        try:
            return str(gather(group, Harm() if group.rank == 1 else None))
        except pickle.UnpicklingError as error:
            return f"refused: {error}"
        finally:
            group.close()

    first, _ = on_ranks(2, work)
    assert first.startswith("refused") and not executed.exists()


def test_a_group_of_one_keeps_its_value():
    value = {"weights": torch.ones(2)}
    assert gather(Group(RankInfo(), torch.device("cpu"), None), value) == [value]
