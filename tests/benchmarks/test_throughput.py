import pytest

from benchmarks import throughput
from benchmarks.cells import CellError
from benchmarks.throughput import (
    ENVPOOL,
    OURS,
    PEERS,
    SAMPLE_FACTORY,
    SAMPLE_FACTORY_ENVPOOL,
    SB3,
    WORKLOADS,
    Contestant,
    ratios,
    shown,
    variants,
)

CHOICES = {"slow": {"rate": 10.0}, "fast": {"rate": 30.0}, "broken": {"rate": None}}


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    """Replaces measurements: each returns the rate in its options. The list records these rates."""
    notes: list[float | None] = []

    def measure_system(system, options):
        notes.append(options["rate"])
        if options["rate"] is None:
            raise CellError("it broke\nin detail")
        return {"steps_per_second": options["rate"]}

    monkeypatch.setattr(throughput, "measure_system", measure_system)
    return notes


def contestant(system: str, rate: float | None) -> Contestant:
    made = Contestant(system, {}, {"only": {"rate": rate}})
    made.take_turn()
    return made


def test_the_fastest_settings_are_measured_in_the_rounds_and_only_those_count(measured):
    tried = Contestant(SB3, {}, CHOICES)
    tried.try_all()
    assert tried.chosen == "fast" and tried.failure is None and tried.rate is None
    tried.take_turn()
    assert tried.samples == [30.0] and measured == [10.0, 30.0, None, 30.0]


def test_a_system_that_fails_is_shown_as_failed_and_not_tried_again(measured):
    broken = Contestant("appo", {}, {"only": {"rate": None}})
    broken.take_turn()
    broken.take_turn()
    assert measured == [None]
    assert shown(broken) == "failed" and broken.failure == "it broke\nin detail"


def test_ratios_are_of_the_best_and_leave_out_who_has_no_figure():
    ours = [contestant("ddppo", 80.0), contestant("ver", 60.0)]
    peers = [contestant(ENVPOOL, 50.0), contestant(SAMPLE_FACTORY, 20.0), Contestant(SB3, {}, {})]
    assert ratios([*ours, contestant("appo", None), *peers]) == ["1.60", "-", "-"]
    assert ratios([*ours, contestant("appo", 100.0), *peers]) == ["2.00", "5.00", "-"]
    both = [*peers, contestant(SAMPLE_FACTORY_ENVPOOL, 80.0)]
    assert ratios([*ours, contestant("appo", 100.0), *both]) == ["1.25", "5.00", "1.25"]
    assert shown(peers[-1]) == "-"


@pytest.mark.parametrize("label", WORKLOADS)
def test_every_system_has_settings_for_every_workload_that_it_can_do(label):
    workload = WORKLOADS[label]
    able = {system for system in OURS + PEERS if variants(system, workload)}
    over_envpool = {ENVPOOL, SAMPLE_FACTORY_ENVPOOL}
    assert able == set(OURS + PEERS) - ({SB3} if "LSTM" in label else set()) - (
        over_envpool if "Doom" in label else set()
    )
    for num_envs in workload.envs:
        workers = [settings["workers"] for settings in variants(SAMPLE_FACTORY, workload).values()]
        assert workers and all(num_envs % (2 * count) == 0 for count in workers), "workers have two halves"
