"""Which rank trains which policy, and what travels between ranks that train different ones."""

from __future__ import annotations

import pytest
import torch

from paceline.distributed.failures import LostConnection
from paceline.distributed.ownership import Ownership
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import TIMEOUT, Group
from paceline.errors import UsageError
from tests.integration.ranks import on_ranks


class Mixed(torch.nn.Module):
    """Elements of several sizes, whose order in memory would not be aligned."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.flag: torch.Tensor
        self.register_buffer("flag", torch.tensor([value > 0, True, False]))
        self.weight = torch.nn.Parameter(torch.full((3, 5), value + 0.5).t())
        self.short: torch.Tensor
        self.register_buffer("short", torch.full((3,), value, dtype=torch.bfloat16))
        self.count: torch.Tensor
        self.register_buffer("count", torch.tensor(value))


def test_three_ranks():
    """With fewer policies than ranks, some ranks share one; with more, a rank has several."""

    def work():
        from paceline.distributed.gather import broadcast, gather_to_all
        from paceline.distributed.reduce import synchronize_from

        with Group.join("cpu") as group:
            few, many = (Ownership.of(group, policies, spread=True) for policies in (2, 4))
            one = torch.tensor([10.0**group.rank])
            few.group.sum_(one)
            first = few.group.broadcast_(torch.tensor([group.rank])).item()
            module = Mixed(group.rank)
            synchronize_from(module, group, 2)
            return {
                "few": (few.own, few.copies, few.speaks_for, few.group.size),
                "many": (many.own, many.copies, many.speaks_for, many.group.size),
                "sum": (one.item(), first),
                "all": gather_to_all(group, {"rank": group.rank, "tensor": torch.arange(group.rank)}),
                "sent": broadcast(group, [group.rank, torch.tensor(group.rank)], 1),
                "owned": few.from_owner(1, lambda: group.rank),
                "module": [tensor.double().sum().item() for tensor in module.state_dict().values()],
            }

    first, second, third = on_ranks(3, work)
    assert [found["few"] for found in (first, second, third)] == [
        ((0,), (1,), (0,), 2),
        ((1,), (0,), (1,), 1),
        ((0,), (1,), (), 2),
    ]
    assert [found["many"] for found in (first, second, third)] == [
        ((0, 3), (1, 2), (0, 3), 1),
        ((1,), (0, 2, 3), (1,), 1),
        ((2,), (0, 1, 3), (2,), 1),
    ]
    assert [found["sum"] for found in (first, second, third)] == [(101.0, 0), (10.0, 1), (101.0, 0)]
    for found in (first, second, third):
        assert [(one["rank"], one["tensor"].tolist()) for one in found["all"]] == [(0, []), (1, [0]), (2, [0, 1])]
        assert found["sent"] == [1, torch.tensor(1)] and found["owned"] == 1
        assert found["module"] == [tensor.double().sum().item() for tensor in Mixed(2).state_dict().values()]


def test_one_rank_trains_everything():
    group = Group(RankInfo(), torch.device("cpu"), None)
    ownership = Ownership.of(group, 3, spread=False)
    assert ownership.own == ownership.speaks_for == (0, 1, 2)
    assert ownership.copies == () and ownership.group is group and not ownership.is_spread
    allowed = "paceline train --ranks 2 or more, torchrun, srun, or --population.no-spread"
    with pytest.raises(UsageError, match=f"population.spread needs several ranks; allowed: {allowed}$"):
        Ownership.of(group, 3, spread=True)


@pytest.mark.parametrize(("policies", "ranks", "spread", "most"), [(3, 2, True, 2), (2, 3, True, 1), (3, 2, False, 3)])
def test_the_largest_share_is_the_same_on_all_ranks(policies, ranks, spread, most, monkeypatch):
    monkeypatch.setattr(torch.distributed, "new_group", lambda ranks, timeout: None)
    groups = [Group(RankInfo(rank=rank, size=ranks), torch.device("cpu"), None) for rank in range(ranks)]
    found = [Ownership.of(group, policies, spread=spread) for group in groups]
    assert [one.largest_share(range(policies)) for one in found] == [most] * ranks
    assert max(len(one.own) for one in found) == most


def test_a_part_of_the_group_has_the_time_out_and_the_errors_of_the_group(monkeypatch):
    timeouts = []

    def new_group(ranks, timeout=None):
        timeouts.append(timeout)
        if len(timeouts) > 1:
            raise RuntimeError("Gloo connectFullMesh failed: no connection")

    monkeypatch.setattr(torch.distributed, "new_group", new_group)
    group = Group(RankInfo(rank=0, size=3), torch.device("cpu"), None)
    group.part([(0, 2), (1,)])
    assert timeouts == [TIMEOUT]
    with pytest.raises(LostConnection, match="a connection to another rank failed: Gloo connectFullMesh failed"):
        group.part([(0, 2), (1,)])
