"""What population.jsonl records, and what reports read from it."""

from __future__ import annotations

import numpy as np

from paceline.population.config import PBTConfig
from paceline.population.history import (
    FILE,
    PopulationEvent,
    ancestors,
    objectives_over_time,
    read_events,
    values_over_time,
)
from paceline.population.pbt import Change, Member, plan_round


def event(step: int, number: int, member: str, donor: str | None = None, *, rate: float = 1.0, donor_step: int = 0):
    change = Change(
        member=member,
        objective=-2.0,
        donor=donor,
        donor_objective=None if donor is None else 3.0,
        donor_step=None if donor is None else donor_step or step,
        before={"rate": 1.0},
        after={"rate": rate},
    )
    return PopulationEvent(step=step, number=number, change=change)


def test_a_line_has_before_and_after():
    members = [
        Member(name=name, objective=value, hyperparameters={"rate": value})
        for name, value in zip("ab", (1.0, 2.0), strict=True)
    ]
    for change in plan_round(members, PBTConfig(every=1), np.random.default_rng(1)):
        written = PopulationEvent(step=7, number=1, change=change)
        line = written.line()
        assert "\n" not in line and '"before"' in line and '"after"' in line
        assert PopulationEvent.parse(line) == written


def test_repeated_rounds_and_partial_lines_do_not_count(tmp_path):
    first = [event(10, 1, "a", rate=2.0), event(20, 2, "a", rate=4.0), event(30, 3, "a", rate=8.0)]
    again = [event(21, 2, "a", rate=5.0)]
    lines = [one.line() for one in first + again]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / FILE).write_text("\n".join([*lines, "[1]", '{"step": 1}', '{"step": 4, "rou']))
    (tmp_path / "none").mkdir()
    read = read_events([tmp_path / "one", tmp_path / "none"])
    assert read == [first[0], *again]


def test_values_over_time():
    events = [event(10, 1, "a", rate=2.0), event(10, 1, "b"), event(20, 2, "a", rate=4.0)]
    assert values_over_time(events, "rate") == {"a": [(0, 1.0), (10, 2.0), (20, 4.0)], "b": [(0, 1.0), (10, 1.0)]}
    assert values_over_time(events, "other") == {}
    assert objectives_over_time(events)["a"] == [(10, -2.0), (20, -2.0)]


def test_descent_follows_donors():
    """b takes a's weights, c takes them from b; then a takes what b had before b was replaced itself."""
    events = [event(10, 1, "b", "a"), event(20, 2, "c", "b"), event(30, 3, "a", "b", donor_step=9)]
    assert ancestors(events) == {
        "b": [(0, "b"), (10, "a")],
        "c": [(0, "c"), (20, "a")],
        "a": [(0, "a"), (30, "b")],
    }
