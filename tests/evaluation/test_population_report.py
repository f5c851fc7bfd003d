"""The population's section of a report, and the report of a population of runs."""

from __future__ import annotations

import json

import numpy as np
import pytest

from paceline.config import Config
from paceline.errors import UsageError
from paceline.evaluation import population_charts
from paceline.evaluation.history import History
from paceline.evaluation.population_report import PopulationData, _matrix, data_of_run, section
from paceline.evaluation.report import write_report
from paceline.population.config import PBTConfig
from paceline.population.folders import member_folders
from paceline.population.history import PopulationEvent
from paceline.population.pbt import Change
from paceline.population.ratings import Matches, elo_ratings
from tests.evaluation.test_report import check

RATE, ENTROPY = "optimizer.learning_rate", "ppo.entropy_coef"


def event(step: int, member: str, donor: str | None = None, before: float = 1.0, after: float = 1.0) -> PopulationEvent:
    change = Change(
        member=member,
        objective=0.5,
        donor=donor,
        donor_objective=None if donor is None else 0.9,
        donor_step=None if donor is None else step,
        before={RATE: before, ENTROPY: 0.0},
        after={RATE: after, ENTROPY: 0.0},
    )
    return PopulationEvent(step=step, number=step // 100, change=change)


EVENTS = [
    *(event(100, "0", after=2.0), event(100, "1"), event(100, "2", donor="1")),
    *(event(200, "0", before=2.0, after=2.0), event(200, "1", donor="0", after=4.0), event(200, "2")),
]


@pytest.fixture
def run(tmp_path):
    """A run of three policies, as its files tell it."""
    Config(pbt=PBTConfig(every=100, objective="win")).save(tmp_path / "config.json")
    rows = []
    for step in range(50, 301, 50):
        own = {"episode_return": 0.0, "episode_win": 0.5, "win": 0.5, RATE: 1.0, "entropy": 1.0, "elo": 3.0}
        policies = {f"policy_{p}/{name}": value + p for p in range(3) for name, value in own.items()}
        population = {"population/best": 1.0, "population/mean": 0.5, "population/spread": 0.1, "elo": 3.0}
        rows.append(
            {"step": step, "seconds": step / 10, "entropy": 1.0, "episode_return": 0.0, **policies, **population}
        )
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "population.jsonl").write_text("".join(event.line() + "\n" for event in EVENTS))
    (tmp_path / "ratings.json").write_text(json.dumps(ratings()))
    return tmp_path


def ratings() -> dict:
    matches = Matches(["0@100", "1@100"])
    matches.add_counts("0@100", "1@100", wins=6, losses=6)
    matches.add_counts("0@200", "0@100", wins=9, losses=3)
    matches.add_counts("0@200", "package.module:Rock", wins=12)
    matches.add_counts("1@200", "0@100", wins=2)
    rated = {name: [r.elo, r.low, r.high] for name, r in elo_ratings(matches, anchor="0@100").items()}
    return {**matches.state_dict(), "ratings": rated}


def test_the_section_shows_policies_hyperparameters_lineage_and_ratings(run):
    text = write_report(run).read_text()
    page = check(text, run)
    assert page.ids == ["learning", "population", "speed", "optimisation", "configuration"]
    for heading in ("Win of each policy", "Win of the population", RATE, "Lineage", "Elo rating", "Win rates"):
        assert page.headings.count(heading) == 1, heading
    assert ENTROPY not in page.headings, "it never changed"
    assert "2 take-overs and 2 mutations" in text
    assert "The zero is the first player, 0@100." in text
    optimisation = text[text.index('id="optimisation"') :]
    assert "policy_0" not in optimisation.lower() and "policy 0" not in optimisation.lower()


def test_a_run_of_one_policy_has_no_such_section(run):
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    plain = [{name: value for name, value in row.items() if "/" not in name} for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))
    assert data_of_run(run, Config(), History.load(run)) is None
    assert 'id="population"' not in write_report(run).read_text()


def test_damaged_ratings_are_left_out(run, caplog):
    (run / "ratings.json").write_text('{"players": [')
    assert "Elo rating" not in write_report(run).read_text()
    assert "ratings.json" in caplog.text


def test_pictures_have_what_the_events_say(run, monkeypatch):
    drawn = {}
    for name in ("lineage", "steps_over_time", "ratings_over_time", "win_rate_matrix", "member_curves"):
        monkeypatch.setattr(
            population_charts,
            name,
            lambda *values, name=name, **options: drawn.setdefault(name, (values, options)) and "x",
        )
    data = data_of_run(run, Config(pbt=PBTConfig(every=100, objective="win")), History.load(run))
    assert data is not None and data.objective == "win" and set(data.losses) == {"episode_return", "entropy"}
    section(data)
    (descents, take_overs, mutations, _), options = drawn["lineage"]
    assert descents == {"0": [(0, "0")], "1": [(0, "1"), (200, "0")], "2": [(0, "2"), (100, "1")]}
    assert [(t.member, t.donor, t.step) for t in take_overs] == [("2", "1", 100), ("1", "0", 200)]
    assert mutations == [("0", 100.0), ("1", 200.0)], "policy 1 took 2.0 over and has 4.0 now"
    assert options["end"] == 300
    (values, taken, _), _ = drawn["steps_over_time"]
    assert values["0"][0].tolist() == [0, 100, 200] and values["0"][1].tolist() == [1, 2, 2]
    assert taken == [(100.0, 1.0, "2", "1"), (200.0, 4.0, "1", "0")]
    (rated, fixed, _), _ = drawn["ratings_over_time"]
    assert rated["0"].step.tolist() == [100, 200] and rated["0"].elo[0] == 0.0 and list(fixed) == ["Rock"]
    assert "1" in rated and rated["1"].step.tolist() == [100], "2 matches are too few for a rating"
    (names, rates), _ = drawn["win_rate_matrix"]
    assert names == ["Rock", "0@100", "1@100", "0@200"]
    assert rates[1, 3] == 0.25 and rates[3, 1] == 0.75 and np.isnan(rates[0, 1])


def test_many_players_and_members_are_drawn():
    matches = Matches()
    for step in range(1, 41):
        matches.add_counts("0@40", f"0@{step * 1000}", wins=step, losses=41 - step)
    assert "16 of 41 players" in _matrix(matches)
    members = [str(number) for number in range(20)]
    colors = population_charts.member_colors(members)
    assert len(set(colors.values())) == 20
    curve = np.arange(200.0), np.arange(200.0)
    events = [event(100, member, donor="0" if member != "0" else None, after=9.0) for member in members]
    data = PopulationData(
        kind="policy", members=members, objective="win", results=dict.fromkeys(members, curve), events=events, end=200.0
    )
    assert section(data).count("<img") == 3


def test_a_population_of_runs_has_a_report(tmp_path):
    for number in (0, 1, 10):
        member = tmp_path / f"member_{number}"
        member.mkdir()
        Config(pbt=PBTConfig(every=100)).save(member / "config.json")
        rows = [{"step": step, "seconds": 1.0, "episode_return": float(step + number)} for step in (10, 20, 30)]
        (member / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        donor = "member_10" if number == 0 else None
        (member / "population.jsonl").write_text(event(20, member.name, donor, after=2.0).line() + "\n")
    assert [path.name for path in member_folders(tmp_path)] == ["member_0", "member_1", "member_10"]
    text = write_report(tmp_path).read_text()
    page = check(text, tmp_path)
    assert page.ids == ["population", "configuration"]
    assert "population of 3 ddppo runs" in text and "1 take-overs" in text and "40" in text
    assert {"Return of each member", "Return of the population", "Lineage", RATE} <= set(page.headings)
    with pytest.raises(UsageError, match="is a population, .*; allowed: several runs, or it alone"):
        write_report(tmp_path, others=[tmp_path / "member_0"])
    assert member_folders(tmp_path / "member_0") == [] and member_folders(tmp_path / "none") == []
