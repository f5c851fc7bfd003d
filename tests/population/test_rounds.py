"""Rounds of population-based training and leagues in whole runs: what changes, what is dropped, what a resume keeps."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.collect.config import BatchingConfig
from paceline.collect.kind_slots import all_kinds
from paceline.config import Config
from paceline.learner.config import PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.config import PolicyConfig
from paceline.pool.config import PoolConfig
from paceline.population.config import LeagueConfig, PBTConfig, PopulationConfig
from paceline.population.history import FILE, PopulationEvent, read_events
from paceline.run import Run
from paceline.schedule.appo import APPO
from paceline.session import Session, train
from tests.integration.test_training import assert_equal, tiny
from tests.pool.multi_agent import LIVES
from tests.population.test_policies import Account

OFTEN = PBTConfig(every=1000, mutation_rate=1.0)


def populated(**changes: Any) -> Config:
    """Four policies play biased rock, paper, scissors. An iteration has 256 steps."""
    options: dict[str, Any] = {
        "env": "tests.population.games:biased_rock_paper_scissors",
        "steps": 5120,
        "pool": PoolConfig(num_envs=8, kind="serial"),
        "policy": PolicyConfig(hidden=(8,)),
        "ppo": PPOConfig(epochs=1, minibatches=1),
        "population": PopulationConfig(policies=4),
        "pbt": OFTEN,
    }
    return dataclasses.replace(tiny("none", optimizer=tiny().optimizer), **(options | changes))


def after_reports(monkeypatch, watch) -> None:
    """Call `watch` with the run after each of its reports."""
    plain = Run.report

    def report(run: Run, steps: int, losses: dict[str, float], finished: Any) -> None:
        plain(run, steps, losses, finished)
        watch(run, losses)

    monkeypatch.setattr(Run, "report", report)


def test_an_objective_that_nobody_reports_is_named_with_those_that_are(tmp_path, caplog):
    env = "tests.evaluation.runs:Reach"
    with caplog.at_level(logging.WARNING):
        train(populated(env=env, steps=1536, pbt=dataclasses.replace(OFTEN, objective="wni")), tmp_path)
    words = "no episode has reported the pbt.objective 'wni'; episodes have reported: return, length, bad, odd"
    assert words in caplog.text


def weights_of(learner: PPOLearner) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in learner.policy.state_dict().items() if name != "version"}


@pytest.mark.parametrize(("start", "rounds"), [(0, [1, 2, 3, 4]), (2500, [3, 4])])
def test_rounds_take_place_at_their_steps(tmp_path, start, rounds):
    """At the end of the first iteration after each multiple of 1000, but not at the end of the run."""
    train(populated(pbt=dataclasses.replace(OFTEN, start=start)), tmp_path)
    events = read_events([tmp_path])
    assert [(event.number, event.step) for event in events] == [
        (number, -(-1000 * number // 256) * 256) for number in rounds for _ in range(4)
    ]
    assert [event.change.member for event in events] == ["0", "1", "2", "3"] * len(rounds)
    assert all(event.change.objective is not None for event in events)
    assert any(event.change.donor is not None for event in events)


def test_a_replaced_policy_has_the_weights_of_its_donor(tmp_path, monkeypatch):
    seen: list[PopulationEvent] = []

    def watch(run: Run, losses: dict[str, float]) -> None:
        events = read_events([tmp_path])
        for event in events[len(seen) :]:
            member = run.learners[int(event.change.member)]
            for path, value in event.change.after.items():
                assert member.hyperparameters.get(path) == value
            if event.change.donor is not None:
                donor = run.learners[int(event.change.donor)]
                assert_equal(weights_of(member), weights_of(donor))
                assert event.change.before.keys() == event.change.after.keys()
        seen[:] = events

    after_reports(monkeypatch, watch)
    run = train(populated(), tmp_path)
    replaced = [event.change for event in seen if event.change.donor is not None]
    assert len(replaced) >= 2
    for change in replaced:
        assert change.objective < change.donor_objective
    final = [weights_of(learner) for learner in run.learners]
    assert any(not torch.equal(final[0][name], final[1][name]) for name in final[0]), "they go on apart"


def test_the_optimiser_uses_mutated_hyperparameters(tmp_path, monkeypatch):
    """Every update uses the values of the latest round."""
    config = populated(optimizer=dataclasses.replace(tiny().optimizer, schedule="constant"))
    current = [{}, {}, {}, {}]
    used: Counter[float] = Counter()
    plain = PPOLearner.learn

    def learn(learner, batch, progress):
        losses = plain(learner, batch, progress)
        (group,) = learner.optimizer.param_groups
        values = learner.hyperparameters.as_dict()
        assert float(group["lr"]) == pytest.approx(values["optimizer.learning_rate"])
        assert group["betas"][0] == values["optimizer.beta1"]
        assert float(learner._scalars.entropy_coef) == pytest.approx(values["ppo.entropy_coef"])
        used[values["optimizer.learning_rate"]] += 1
        return losses

    def watch(run: Run, losses: dict[str, float]) -> None:
        for event in read_events([tmp_path]):
            current[int(event.change.member)] = event.change.after
        for learner, values in zip(run.learners, current, strict=True):
            for path, value in values.items():
                assert learner.hyperparameters.get(path) == value

    monkeypatch.setattr(PPOLearner, "learn", learn)
    after_reports(monkeypatch, watch)
    train(config, tmp_path)
    initial = config.optimizer.learning_rate
    assert used[initial] > 0, "before the first round"
    assert {rate for rate in used if rate in (initial * 1.2, initial / 1.2)} and len(used) > 2


def test_policies_begin_with_different_hyperparameters(tmp_path):
    config = populated(steps=1500, pbt=dataclasses.replace(OFTEN, spread=10.0))
    train(config, tmp_path)
    first = [event.change.before["optimizer.learning_rate"] for event in read_events([tmp_path])[:4]]
    low, high = config.optimizer.learning_rate / 10, config.optimizer.learning_rate * 10
    assert len(set(first)) == 4 and low <= min(first) < max(first) <= high
    assert max(first) / min(first) > 10


# ---------------------------------------------------------------- rows of replaced weights


@pytest.mark.parametrize("system", ["ver", "appo"])
def test_rows_of_replaced_weights_are_dropped_and_counted(tmp_path, monkeypatch, system):
    account, dropped, replaced = Account(monkeypatch, 4), [], []
    plain_learn, plain_take = PPOLearner.learn, PPOLearner.take_over

    def learn(learner, batch, progress):
        assert (batch.version[batch.valid_rows()] >= learner.first_version).all()
        return plain_learn(learner, batch, progress)

    def take_over(learner, donor):
        plain_take(learner, donor)
        replaced.append(learner)

    monkeypatch.setattr(PPOLearner, "learn", learn)
    monkeypatch.setattr(PPOLearner, "take_over", take_over)
    after_reports(monkeypatch, lambda run, losses: dropped.append(losses.get("dropped_rows", 0.0)))
    config = populated(
        system=system,
        env="tests.pool.multi_agent:mortals",
        steps=2400,
        deterministic=False,
        batching=BatchingConfig(minimum=0.25, maximum=0.5),
        pbt=dataclasses.replace(OFTEN, every=200),
    )
    run = train(config, tmp_path)
    learned = sum(account.learned.values())
    assert set(account.learned.values()) == {1} and learned == run.step
    assert len(replaced) > 3 and sum(dropped) > 0
    if system == "ver":  # it learns from all rows in the order in which they were made
        assert sum(dropped) == len(missing(account))
    matches = Counter(env for env, _, agent in account.drawn if agent == 0)
    rows_each = sum(LIVES.values())
    ended = sum(count - 1 for count in matches.values()) * rows_each
    waiting = (
        sum(APPO.buffer_rows(config, kind, run.ownership) for kind in all_kinds(run.pool.spec))
        if system == "appo"
        else len(matches) * rows_each
    )
    assert ended - waiting <= learned + sum(dropped) <= ended + len(matches) * rows_each


def missing(account: Account) -> list[tuple[int, ...]]:
    """Rows that were not learned from, although a later one of the same agent was."""
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for env, episode, agent, step in account.learned:
        last[env, agent] = max(last.get((env, agent), (0, 0)), (episode, step))
    lives = list(LIVES.values())
    return [
        (env, episode, agent, step)
        for (env, agent), end in last.items()
        for episode in range(end[0] + 1)
        for step in range(lives[agent])
        if (episode, step) < end and (env, episode, agent, step) not in account.learned
    ]


# ---------------------------------------------------------------- weights of the reward


def test_weights_of_the_reward_mutate_and_reach_the_environment(tmp_path, monkeypatch):
    """A policy is rewarded by its own weights, from the first step after a round on."""
    paid: list[set[float]] = [set(), set()]
    learners: list[PPOLearner] = []
    plain = PPOLearner.learn

    def learn(learner, batch, progress):
        if learner not in learners:
            learners.append(learner)
        rows = batch.valid_rows()
        weights = weights_now(tmp_path).get(str(learners.index(learner)), {"reward.hit": 0.1, "reward.damage": 3.0})
        expected = 10 * weights["reward.hit"] + weights["reward.damage"]
        torch.testing.assert_close(batch.reward[rows], torch.full((len(rows),), expected))
        paid[learners.index(learner)].add(round(expected, 6))
        return plain(learner, batch, progress)

    monkeypatch.setattr(PPOLearner, "learn", learn)
    tuned = ("reward.hit", "reward.damage", "optimizer.learning_rate")
    config = populated(
        env="tests.pool.test_reward_weights:Shaped",
        steps=2048,
        population=PopulationConfig(policies=2),
        pbt=PBTConfig(every=300, mutation_rate=1.0, tuned=tuned, min_gap=1e-3),
    )
    train(config, tmp_path)
    events = read_events([tmp_path])
    assert all(set(event.change.after) == set(tuned) for event in events)
    assert len(paid[0] | paid[1]) >= 3


def weights_now(folder: Path) -> dict[str, dict[str, float]]:
    """By policy: the hyper-parameters after its latest round."""
    return {event.change.member: event.change.after for event in read_events([folder])}


# ---------------------------------------------------------------- resumed runs


def in_league(**changes: Any) -> Config:
    """Rounds and snapshots every few iterations, and half of the matches against past selves. An iteration has 192
    steps on average."""
    league = LeagueConfig(past_share=0.5, every=600, keep=2, prioritized=changes.pop("prioritized", False))
    return populated(league=league, pbt=dataclasses.replace(OFTEN, every=800, spread=2.0), **changes)


@pytest.mark.parametrize(
    ("env", "prioritized"), [("tests.population.games:Kuhn", True), ("tensor:pong?points=1", False)]
)
def test_a_resumed_run_with_rounds_and_past_selves_is_bit_equal(tmp_path, env, prioritized):
    config = in_league(env=env, prioritized=prioritized, steps=4096)
    if env.startswith("tensor"):
        config = dataclasses.replace(config, pool=PoolConfig(num_envs=8))
    train(config, tmp_path / "whole")
    for until in (1800, 3300):  # at 1800 a snapshot was just taken, and another dropped, which may still play
        resume = "latest" if until > 1800 else None
        with Session(config, tmp_path / "parts", resume=resume) as session:
            session.run(until=until)
    train(config, tmp_path / "parts", resume="latest")
    whole, parts = (CheckpointFolder(tmp_path / name / "checkpoints").load() for name in ("whole", "parts"))
    for policy in range(4):
        assert_equal(whole.weights_of(policy), parts.weights_of(policy))
    for name in (FILE, "ratings.json"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "parts" / name).read_text(), name
    assert any(event.change.donor for event in read_events([tmp_path / "whole"]))
    players = json.loads((tmp_path / "whole" / "ratings.json").read_text())["players"]
    assert len(players) > 8
    past = [sorted(path.name for path in (tmp_path / name / "past_selves").iterdir()) for name in ("whole", "parts")]
    assert past[0] == past[1] and len(past[0]) == 8


def test_a_resumed_run_without_the_files_of_past_selves_warns_and_continues(tmp_path, caplog):
    config = in_league(steps=3584)
    with Session(config, tmp_path) as session:
        session.run(until=2500)
    gone = sorted((tmp_path / "past_selves").glob("*.safetensors"))
    assert len(gone) == 8
    for path in gone[1:]:
        path.unlink()
    with caplog.at_level(logging.WARNING):
        run = train(config, tmp_path, resume="latest")
    assert run.step >= config.steps
    warned = [record.message for record in caplog.records if "cannot be read" in record.message]
    assert len(warned) == len(gone) - 1 and str(gone[1]) in " ".join(warned)
    assert len(list((tmp_path / "past_selves").iterdir())) == 8
