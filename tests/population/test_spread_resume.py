"""`population.spread`: how runs end, and how they continue."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from paceline.checkpoint import CheckpointFolder
from paceline.learner.finite import NonFiniteError
from paceline.learner.ppo import PPOLearner
from paceline.population.config import PopulationConfig
from paceline.population.history import FILE
from paceline.session import Session, train
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal
from tests.population.test_policies import several
from tests.population.test_rounds import in_league
from tests.population.test_spread import MORTALS, same, spread, without_running

# ---------------------------------------------------------------- resumed runs


@pytest.mark.parametrize("system", ["ddppo", "ver"])
def test_a_resumed_run_is_bit_equal(tmp_path, system):
    """With rounds, past selves and copies of the other rank's policies."""
    config = in_league(env="tests.population.games:Kuhn", system=system, steps=2400, population=spread(4))
    folder = str(tmp_path)

    def work():
        train(config, Path(folder) / "whole")
        with Session(config, Path(folder) / "parts") as session:
            session.run(until=1100)
        return train(config, Path(folder) / "parts", resume="latest").step

    steps = on_ranks(2, work)
    whole, parts = (CheckpointFolder(tmp_path / name / "checkpoints").load() for name in ("whole", "parts"))
    assert steps[0] == steps[1] == whole.state["step"] == parts.state["step"]
    for policy in range(4):
        assert_equal(whole.weights_of(policy), parts.weights_of(policy))
    for name in (FILE, "ratings.json"):
        assert (tmp_path / "whole" / name).read_text() == (tmp_path / "parts" / name).read_text(), name
    learners = [[saved.state["agent"], *saved.state["other_learners"]] for saved in (whole, parts)]
    assert all(same(mine, theirs) for mine, theirs in zip(*learners, strict=True))
    assert all(one["optimizer"]["state"] for one in learners[0]), "the states are those of the owners"
    counts = [saved.state["population"]["copy_steps"] for saved in (whole, parts)]
    assert counts[0] == counts[1] > 0
    assert len(list((tmp_path / "whole" / "past_selves").iterdir())) == 8


def test_resume_with_another_number_of_ranks(tmp_path):
    """Two ranks, then one that trains everything, then two again: each policy continues as its owner has left it."""
    config, folder = several("ddppo", env=MORTALS, steps=300, population=spread(3)), str(tmp_path)
    alone = dataclasses.replace(config, steps=600, population=PopulationConfig(policies=3))
    on_ranks(2, lambda: train(config, Path(folder)).step)
    saved = CheckpointFolder(tmp_path / "checkpoints").load()
    assert saved.state["trained_by"] == [(0,), (1,), (0,)]
    with Session(alone, tmp_path, resume=True) as session:
        for policy, learner in enumerate(session.learners):
            assert_equal(learner.policy.state_dict(), saved.weights_of(policy))
            shared = [saved.state["agent"], *saved.state["other_learners"]][policy]
            assert same(learner.state_dict()["optimizer"]["state"], shared["optimizer"]["state"])
            owner = saved.state["ranks"][policy % 2]["agent"]
            scale = [owner, *owner["other_learners"]][policy]["targets"]
            mine = learner.rank_state()["targets"]
            assert scale["moments.count"] > 1 and same(without_running(mine), without_running(scale))
        session.run()
        assert session.step >= 600
    longer = dataclasses.replace(config, steps=900)

    def work():
        run = train(longer, Path(folder), resume="latest")
        return run.step, [learner.policy.state_dict() for learner in run.learners]

    (step, first), (_, second) = on_ranks(2, work)
    assert step >= 900
    for mine, theirs in zip(first, second, strict=True):
        assert_equal(mine, theirs)


# ---------------------------------------------------------------- the end of a run


@pytest.mark.parametrize(("system", "ranks"), [("ver", 2), ("appo", 2), ("ver", 3)])
def test_a_rank_that_stops_in_its_update_stops_all(tmp_path, system, ranks):
    """The last rank stops before the third update of its policy; of three ranks, the first one trains it, too. The
    other policy is updated. All ranks then have the same weights, and continue with them."""
    config, folder = several(system, steps=100_000, population=spread(2)), str(tmp_path)

    def work():
        import os

        updates, epochs = [], PPOLearner._run_epochs

        def stopping(learner, batch):
            updates.append(learner.version)
            if int(os.environ["RANK"]) == ranks - 1 and len(updates) == 3:
                learner._stop.request("signal")
            return epochs(learner, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PPOLearner, "_run_epochs", stopping)
            run = train(config, Path(folder))
        weights = [learner.policy.state_dict() for learner in run.learners]
        longer = train(dataclasses.replace(config, steps=run.step + 200), Path(folder), resume="latest")
        after = [learner.policy.state_dict() for learner in longer.learners]
        return {"stopped": (run.interrupted, run.step, len(updates)), "weights": weights, "after": after}

    first, *others = on_ranks(ranks, work)
    interrupted, step, updates = first["stopped"]
    assert interrupted and updates == 3 and 0 < step < 3 * ranks * 64, "the interrupted update does not count"
    for found in others:
        assert found["stopped"] == first["stopped"]
        for name in ("weights", "after"):
            for mine, theirs in zip(first[name], found[name], strict=True):
                assert_equal(mine, theirs)
    for stopped, after in zip(first["weights"], first["after"], strict=True):
        assert int(stopped["version"]) == 3 < int(after["version"])


@pytest.mark.parametrize(("ranks", "said"), [(2, "rank 1: policy 1"), (3, "ranks 0, 2: policy 0")])
def test_an_update_that_is_not_finite_ends_all_ranks_with_the_same_message(tmp_path, ranks, said):
    """The gradients of the last rank are NaN; of three ranks, the first one averages them with its own."""
    config, folder = several("ddppo", population=spread(2)), str(tmp_path)

    def work():
        import os

        backward = PPOLearner._backward

        def failing(learner, batch, minibatch):
            sums = backward(learner, batch, minibatch)
            if int(os.environ["RANK"]) == ranks - 1 and learner.version == 2:
                learner._gradients.flat.fill_(torch.nan)
            return sums

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PPOLearner, "_backward", failing)
            with pytest.raises(NonFiniteError) as raised:
                train(config, Path(folder))
        return str(raised.value), raised.value.names_rank

    first, *others = on_ranks(ranks, work)
    message, names_rank = first
    assert names_rank and message.startswith(f"{said}: update 3: 4 gradients were not finite"), message
    assert message.count("rank") == 1 and others == [first] * (ranks - 1)


@pytest.mark.parametrize("system", ["ddppo", "appo"])
def test_an_update_that_is_not_finite_names_the_policy_where_all_ranks_train_all(tmp_path, monkeypatch, system):
    backward, poisoned = PPOLearner._backward, []

    def failing(learner, batch, minibatch):
        sums = backward(learner, batch, minibatch)
        if learner is poisoned[-1]:
            learner._gradients.flat.fill_(torch.nan)
        return sums

    monkeypatch.setattr(PPOLearner, "_backward", failing)
    with Session(several(system, policies=2), tmp_path) as session:
        poisoned.append(session.learners[1])
        with pytest.raises(NonFiniteError, match=r"^policy 1: update \d+: 4 gradients were not finite, "):
            session.run()
