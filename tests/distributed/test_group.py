"""The group of ranks: rank numbers, reductions, and DD-PPO's preemption of slow ranks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from paceline.distributed.config import PreemptionConfig
from paceline.distributed.preemption import ByCount
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.reduce import FlatGradients
from paceline.distributed.runtime import Group, choose_device
from paceline.errors import UsageError
from tests.integration.ranks import on_ranks


def test_local_rank_is_not_the_rank():
    """On the second machine, the first process is rank 8 and uses GPU 0."""
    place = RankInfo.find({"RANK": "8", "WORLD_SIZE": "16", "LOCAL_RANK": "0"})
    assert (place.rank, place.size, place.local_rank) == (8, 16, 0)
    place = RankInfo.find({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "6", "SLURM_LOCALID": "1"})
    assert (place.rank, place.size, place.local_rank) == (5, 6, 1)
    assert RankInfo.find({}) == RankInfo(rank=0, size=1, local_rank=0)


def test_torchrun_wins_over_slurm():
    """In a Slurm allocation torchrun's variables count, because it sets them for each process."""
    both = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    assert RankInfo.find(both).rank == 1


def test_a_batch_script_without_srun_is_no_rank():
    """SLURM sets the number of the job's tasks there, too. Waiting for ranks that nobody starts would never end."""
    assert RankInfo.find({"SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"}) == RankInfo()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"RANK": "one"}, "RANK is 'one'; allowed: a whole number, at least 0"),
        ({"RANK": "-1"}, "RANK is '-1'; allowed: a whole number, at least 0"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE is '0'; allowed: a whole number, at least 1"),
        ({"LOCAL_RANK": ""}, "LOCAL_RANK is ''; allowed: a whole number, at least 0"),
        ({"RANK": "2"}, "RANK is 2; allowed: less than WORLD_SIZE, 2"),
    ],
)
def test_wrong_numbers_of_ranks_are_named(changed, words):
    with pytest.raises(UsageError, match=words):
        RankInfo.find({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"} | changed)


def test_devices():
    assert choose_device("cpu", RankInfo(local_rank=3, rank=3, size=4)).type == "cpu"
    with pytest.raises(UsageError, match="allowed: cpu, cuda, cuda:N, auto"):
        choose_device("tpu")
    if not torch.cuda.is_available():
        assert choose_device("auto").type == "cpu"
        with pytest.raises(UsageError, match="--device cpu"):
            choose_device("cuda")
        with pytest.raises(UsageError, match="device cuda:1: PyTorch finds no CUDA device"):
            choose_device("cuda:1")


def test_a_numbered_device_is_for_one_rank(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device("cuda:1") == torch.device("cuda", 1) and chosen == [1]
    assert choose_device("cuda", RankInfo(rank=3, size=4, local_rank=1)) == torch.device("cuda", 1)
    with pytest.raises(UsageError, match="cuda:2 does not exist on this machine; allowed: cuda:0 to cuda:1"):
        choose_device("cuda:2")
    with pytest.raises(UsageError, match="cuda:1 is for one rank; allowed: --device cuda"):
        choose_device("cuda:1", RankInfo(rank=0, size=2, local_rank=0))


def test_unused_parameters_do_not_break_the_reduction():
    """The gradient of an unused parameter is zero, and no rank hangs."""
    used, unused = torch.nn.Linear(2, 1), torch.nn.Linear(2, 1)
    gradients = FlatGradients([*used.parameters(), *unused.parameters()])
    used(torch.ones(1, 2)).sum().backward()
    gradients.average(Group(RankInfo(), torch.device("cpu"), None))
    assert used.weight.grad.tolist() == [[1.0, 1.0]]
    assert unused.weight.grad.tolist() == [[0.0, 0.0]]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted as Linux lists them")
def test_a_closed_group_leaves_no_thread():
    """A gloo thread that is alive when the interpreter ends may abort a process that succeeded."""

    def work():
        group = Group.join("cpu")
        torch.optim.Adam([torch.nn.Parameter(torch.ones(1))])  # imports modules that would keep the group alive
        group.sum_(torch.ones(1))
        running = threads()
        group.close()
        return running, threads()

    def threads():
        return [name.strip() for name in (task.read_text() for task in Path("/proc/self/task").glob("*/comm"))]

    for running, left in on_ranks(2, work):
        assert any("gloo" in name for name in running) and not any("gloo" in name for name in left)


def test_joining_does_not_import_the_compiler():
    """The import takes two seconds on every rank."""

    def work():
        with Group.join("cpu") as group:
            group.sum_(torch.ones(1))
        return "torch._dynamo" in sys.modules

    assert on_ranks(2, work) == [False, False]


def test_ranks_can_join_again():
    """A program may train twice."""

    def work():
        sums = []
        for _ in range(2):
            group = Group.join("cpu")
            sums.append(group.sum_(torch.tensor([float(group.rank + 1)])).item())
            group.close()
        return sums

    assert on_ranks(2, work) == [[3.0, 3.0]] * 2


def test_clipping_scales_to_the_norm():
    layer = torch.nn.Linear(3, 1, bias=False)
    gradients = FlatGradients(layer.parameters())
    gradients.flat.copy_(torch.tensor([3.0, 4.0, 0.0]))
    assert gradients.clip(None) == 5.0
    assert gradients.clip(1.0) == 5.0
    torch.testing.assert_close(gradients.flat, torch.tensor([0.6, 0.8, 0.0]), rtol=1e-4, atol=1e-4)
    gradients.clip(10.0)
    torch.testing.assert_close(gradients.flat.norm(), torch.tensor(1.0), rtol=1e-4, atol=1e-4)


def test_reductions_over_three_ranks():
    def work():
        group = Group.join("cpu")
        value = torch.tensor([float(group.rank)])
        result = (
            group.sum_(value.clone()).item(),
            group.mean_(value.clone()).item(),
            group.broadcast_(value + 7).item(),
            group.any(group.rank == 1),
            group.any(False),
            group.is_first,
        )
        group.close()
        return result

    assert on_ranks(3, work) == [(3.0, 1.0, 7.0, True, False, rank == 0) for rank in range(3)]


class FakeStore:
    """A key-value store of counters."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def add(self, key: str, amount: int) -> int:
        self.counts[key] = self.counts.get(key, 0) + amount
        return self.counts[key]

    def delete_key(self, key: str) -> None:
        del self.counts[key]


def make_ranks(size: int, threshold: float, steps: int = 100) -> list[ByCount]:
    store = FakeStore()
    config = PreemptionConfig(threshold=threshold)
    places = [RankInfo(rank=rank, size=size) for rank in range(size)]
    groups = [Group(place, torch.device("cpu"), store) for place in places]  # type: ignore[arg-type]
    return [ByCount(config, group, steps) for group in groups]


def test_slow_ranks_stop_once_more_than_the_threshold_are_done():
    ranks = make_ranks(10, 0.6)
    for rank in ranks[:6]:
        rank.finished(100)
    assert not ranks[9].should_stop(50), "60 % are done, not more"
    ranks[6].finished(100)
    assert ranks[9].should_stop(50)


def test_no_rollout_ends_before_a_quarter_of_its_steps():
    ranks = make_ranks(4, 0.5)
    for rank in ranks[:3]:
        rank.finished(100)
    assert not ranks[3].should_stop(24)
    assert ranks[3].should_stop(25)


def test_a_threshold_of_one_never_preempts():
    ranks = make_ranks(4, 1.0)
    for rank in ranks[:3]:
        rank.finished(100)
    assert not ranks[3].should_stop(99)


def test_every_iteration_has_its_own_counter():
    """No counter is reset, so a rank that is one iteration behind reads the counter of its own iteration."""
    ranks = make_ranks(2, 0.4)
    for _ in range(5):
        ranks[0].finished(100)
        assert ranks[1].should_stop(50), "its peer is done with this iteration"
        ranks[1].finished(50)
        assert not ranks[0].should_stop(50), "nobody is done with the next one yet"


def test_a_second_training_by_the_same_ranks_has_counters_of_its_own():
    """The store still has the counters of the first training's last iterations."""
    first = make_ranks(2, 0.4)
    for _ in range(5):
        for rank in first:
            rank.finished(100)
    second = [ByCount(PreemptionConfig(threshold=0.4), rank._group, 100) for rank in first]
    for _ in range(5):
        assert not second[1].should_stop(50), "nobody is done yet"
        second[0].finished(100)
        assert second[1].should_stop(50)
        second[1].finished(50)


def test_old_counters_are_removed():
    ranks = make_ranks(2, 0.6)
    for _ in range(50):
        for rank in ranks:
            rank.finished(100)
    assert len(ranks[0]._group.store.counts) <= 3  # type: ignore[union-attr]


def test_one_rank_is_never_preempted():
    alone = ByCount(PreemptionConfig(), Group(RankInfo(), torch.device("cpu"), None), 10)
    assert not alone.should_stop(9)
    alone.finished(9)


def test_bad_thresholds_are_refused():
    with pytest.raises(UsageError, match="preemption.threshold must be between 0 and 1, got 60"):
        PreemptionConfig(threshold=60)


def test_preemption_over_real_ranks():
    """Two of three ranks finish at once. The third stops when it reads the counter, not at its last step."""

    def work():
        import time

        group = Group.join("cpu")
        preemption = ByCount(PreemptionConfig(threshold=0.5, minimum=0.0), group, 10_000)
        taken = []
        for _ in range(3):
            step = 0
            if group.rank == 2:
                deadline = time.monotonic() + 30
                while not preemption.should_stop(step) and step < 9_999 and time.monotonic() < deadline:
                    step += 1
                    time.sleep(0.001)
            else:
                step = 10_000
            preemption.finished(step)
            group.any(False)
            taken.append(step)
        group.close()
        return taken

    *fast, slow = on_ranks(3, work)
    assert fast == [[10_000] * 3] * 2
    assert all(step < 9_999 for step in slow)
