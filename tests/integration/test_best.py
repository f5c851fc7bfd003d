"""The checkpoint `best`: by what it is chosen, and from when on."""

from __future__ import annotations

import dataclasses

import pytest

from paceline.checkpoint import CheckpointFolder
from paceline.config import CheckpointConfig
from paceline.pool.config import PoolConfig
from paceline.pool.protocol import Episode
from paceline.population.config import LeagueConfig, PopulationConfig
from paceline.run import Run
from paceline.saving import Saver
from paceline.session import Session, train
from paceline.telemetry.episodes import WINDOW, LatestEpisodes
from tests.integration.test_training import tiny
from tests.population.test_rounds import populated


def test_the_best_has_the_highest_merit_and_of_equals_it_is_the_latest(tmp_path, monkeypatch):
    """Before a first merit is known, the latest checkpoint is the best. A resumed run remembers the highest merit."""
    merits, now = [None, None, 1.0, 3.0, 3.0, 2.0, None, 2.5, 3.0], [0]
    monkeypatch.setattr(Run, "merit", property(lambda run: merits[now[0]]))
    config = dataclasses.replace(tiny(), checkpoint=CheckpointConfig(seconds=1e6, keep=50), steps=10**6)
    expected = [1, 2, 3, 4, 5, 5, 5, 5, 9]
    steps = []
    for number, best in enumerate(expected, 1):
        now[0] = number - 1
        with Session(config, tmp_path, resume=True if number > 1 else None) as session:
            session.run(until=number * 256)  # closing it saves
            steps.append(session.state.step)
        assert CheckpointFolder(tmp_path / "checkpoints").load("best").state["step"] == steps[best - 1]


@pytest.mark.parametrize("num_slots", [4, 300])
def test_a_mean_return_counts_when_as_many_episodes_have_ended_as_there_are_slots(num_slots):
    """The first that end are short. In each slot here the first episode is one step long, and all others are ten."""
    latest, least = LatestEpisodes([]), max(WINDOW, num_slots)
    for number in range(least + 50):
        length = 1 if number < num_slots else 10
        latest.add(latest.sums_of([Episode(number % num_slots, -float(length), length, {})]))
        found = latest.mean_return(num_slots)
        assert (found is None) == (number + 1 < least)
    assert found == latest.means()["episode_return"]


def test_against_opponents_the_best_is_chosen_by_its_rating(tmp_path):
    """Their returns add up to nothing, and those against past selves tell only how weak these are."""
    league = LeagueConfig(past_share=0.5, every=1000)
    config = populated(
        pbt=dataclasses.replace(populated().pbt, every=None), population=PopulationConfig(policies=1), league=league
    )
    with Session(dataclasses.replace(config, pool=PoolConfig(num_envs=8, kind="serial")), tmp_path) as session:
        session.run()
        ratings = session.state.population._latest_ratings(WINDOW)
        assert ratings and session.state.merit == max(ratings.values())
        assert session.state.merit != session.state.episodes.means()["episode_return"]


def test_a_deterministic_run_asks_for_its_merit_only_for_checkpoints(tmp_path, monkeypatch):
    """It takes its state before each iteration, and the ratings of many players take long."""
    asked, taken, take = [], [], Saver._take
    monkeypatch.setattr(Run, "merit", property(lambda run: asked.append(run.step) or 1.0))
    monkeypatch.setattr(Saver, "_take", lambda saver, **how: taken.append(0) or take(saver, **how))
    assert train(dataclasses.replace(tiny(), deterministic=True), tmp_path).iterations == len(taken) - 1 > 5
    assert len(asked) == 1


def test_what_is_compared_is_of_one_kind(tmp_path):
    """A run that gets a league, or another objective, does not compare its ratings with returns of before."""
    config = populated(pbt=dataclasses.replace(populated().pbt, every=None))
    with Session(config, tmp_path) as session:
        session.run(until=2048)  # closing it saves
        merit = session.state.merit
    for changed, same in (
        (config, True),
        (dataclasses.replace(config, pbt=dataclasses.replace(config.pbt, objective="length")), False),
    ):
        with Session(changed, tmp_path, resume=True) as session:
            assert session._saver._best == (merit if same else -float("inf"))


def test_a_policy_that_takes_over_weights_begins_anew():
    latest = LatestEpisodes([])
    latest.add([200.0, -1000.0, 2000.0])
    assert latest.mean_return(10) == -5.0
    latest.clear()
    latest.add([1.0, -1.0, 1.0])
    assert latest.mean_return(10) is None


def test_of_several_policies_as_many_episodes_count_as_a_policy_has_slots(tmp_path):
    config = populated(pbt=dataclasses.replace(populated().pbt, every=None))
    with Session(config, tmp_path) as session:
        session.run(until=1024)
        population = session.state.population
        assert population.merit(4) is not None and population.merit(4 * 10**6) is None


def test_of_several_policies_the_objective_of_the_best_one_counts(tmp_path):
    config = populated(pbt=dataclasses.replace(populated().pbt, every=None))
    with Session(config, tmp_path) as session:
        session.run()
        assert session.state.merit == max(session.state.population.objectives)
