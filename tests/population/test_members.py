"""Whole runs as members of a population: what they tell each other, and what they take over."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import shutil

import pytest
import torch

from paceline.checkpoint import CheckpointError
from paceline.config import Config
from paceline.errors import UsageError
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.optimizer import load_moments, make_adam
from paceline.population import member as member_module
from paceline.population.adoption import adopt
from paceline.population.config import PBTConfig
from paceline.population.exchange import ExchangeFolder, MemberResult
from paceline.population.history import read_events
from paceline.population.member import train_member, tuned_by
from paceline.session import Session
from paceline.telemetry.episodes import LatestEpisodes
from tests.integration.ranks import on_ranks
from tests.integration.test_d4pg import small as small_d4pg
from tests.integration.test_training import tiny

PBT = PBTConfig(every=256, mutation_rate=0.0)


def config_of(system: str, **changes) -> Config:
    """A short run with two rounds, one of them before its end."""
    if system == "d4pg":
        pbt = PBTConfig(every=500, mutation_rate=0.0)
        return small_d4pg(**{"deterministic": True, "pbt": pbt, **changes})
    own = {"env": "gym:CartPole-v1", "pbt": PBT, "deterministic": system != "appo"}
    return tiny("lstm", system=system, **(own | changes))


def changed_result(population, name: str, **changes) -> MemberResult:
    """Change what a member has published."""
    path = population / "exchange" / name / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return ExchangeFolder(population).results()[name]


def with_donor(population, config: Config, **hyperparameters: float) -> MemberResult:
    """A member `donor` that has ended, and is better than any other."""
    train_member(config, population / "donor", population)
    found = ExchangeFolder(population).results()["donor"].hyperparameters
    assert hyperparameters.keys() <= found.keys()
    return changed_result(population, "donor", objective=1e9, hyperparameters=found | hyperparameters)


@pytest.fixture
def adopted(monkeypatch) -> list[dict]:
    """What learners have right after each adoption."""
    seen: list[dict] = []

    def watching(learner, weights, state):
        before = _everything(learner)
        adopt(learner, weights, state)
        seen.append({"before": before, "after": _everything(learner)})

    monkeypatch.setattr(member_module, "adopt", watching)
    return seen


def _everything(learner) -> dict:
    weights, state = learner.policy.state_dict(), learner.state_dict()
    return copy.deepcopy({"weights": weights, "agent": state, "rank": learner.rank_state()})


def _moments(agent: dict) -> str:
    """The moments of a learner's optimisers, to compare."""
    optimizers = agent.get("optimizers") or {"all": agent["optimizer"]}
    return json.dumps([one["state"] for one in optimizers.values()], default=lambda values: values.tolist())


@pytest.mark.parametrize("system", ["ddppo", "ver", "appo", "d4pg"])
def test_the_worse_member_takes_over_everything(tmp_path, adopted, system):
    config = config_of(system)
    rate = "d4pg.actor_rate" if system == "d4pg" else "optimizer.learning_rate"
    donor = with_donor(tmp_path, dataclasses.replace(config, seed=7), **{rate: 3e-5})
    assert not adopted
    run = train_member(config, tmp_path / "worse", tmp_path)
    assert run.step >= config.steps and len(adopted) == 1
    given, before, after = ExchangeFolder(tmp_path).load(donor), adopted[0]["before"], adopted[0]["after"]
    for name, values in given.weights.items():
        if name == "version":
            assert after["weights"][name] == before["weights"][name] + 1, "it counts on"
        else:
            assert torch.equal(after["weights"][name], values), name
    assert _moments(given.state["agent"]) == _moments(after["agent"]) != _moments(before["agent"])
    for name, values in given.state["rank"].get("targets", {}).items():
        if name == "running":  # the returns of the episodes that go on
            assert torch.equal(after["rank"]["targets"][name], before["rank"]["targets"][name])
            assert before["rank"]["targets"][name].any()
        else:
            assert torch.equal(after["rank"]["targets"][name], values), name
    assert run.learners[0].hyperparameters.get(rate) == 3e-5
    first = read_events([tmp_path / "worse"])[0]
    assert (first.number, first.change.donor, first.change.donor_step) == (1, "donor", donor.step)
    assert first.change.before[rate] != 3e-5 and first.change.after[rate] == 3e-5


def test_the_better_member_keeps_its_own(tmp_path, adopted):
    with_donor(tmp_path, config_of("ddppo"))
    changed_result(tmp_path, "donor", objective=-1e9)
    train_member(config_of("ddppo"), tmp_path / "better", tmp_path)
    assert not adopted
    assert [event.change.is_any for event in read_events([tmp_path / "better"])] == [False]


def test_episodes_of_the_replaced_weights_do_not_count(tmp_path, monkeypatch):
    counts = []
    plain = member_module.RunMember._adopt

    def watching(self, donor):
        done = plain(self, donor)
        counts.append(self._session.state.episodes.means()["episode_return"])
        return done

    monkeypatch.setattr(member_module.RunMember, "_adopt", watching)
    with_donor(tmp_path, config_of("ddppo"))
    run = train_member(config_of("ddppo"), tmp_path / "worse", tmp_path)
    assert counts == [None] and run.episodes.means()["episode_return"] is not None


def test_weights_that_are_gone_change_nothing(tmp_path, adopted, caplog):
    config = config_of("ddppo")
    with_donor(tmp_path, config, **{"optimizer.learning_rate": 3e-5})
    changed_result(tmp_path, "donor", checkpoint="step_999")
    run = train_member(config, tmp_path / "worse", tmp_path)
    assert run.step >= config.steps and not adopted and "step_999" in caplog.text
    assert run.learners[0].hyperparameters.get("optimizer.learning_rate") == config.optimizer.learning_rate
    assert not any(event.change.is_any for event in read_events([tmp_path / "worse"]))


def test_an_objective_that_is_not_finite_ends_the_member(tmp_path, monkeypatch):
    monkeypatch.setattr(LatestEpisodes, "means", lambda self: {"episode_return": float("nan")})
    with pytest.raises(UsageError, match="objective of one is nan"):
        train_member(config_of("ddppo"), tmp_path / "one", tmp_path)
    assert ExchangeFolder(tmp_path).results() == {}


def test_mutations_are_kept_by_a_checkpoint(tmp_path):
    """The learning rate of a resumed member is the one that it had."""
    config = config_of("ddppo", pbt=dataclasses.replace(PBT, mutation_rate=1.0), steps=300)
    with_donor(tmp_path, config_of("ddppo"))
    train_member(config, tmp_path / "worse", tmp_path)
    (event,) = read_events([tmp_path / "worse"])
    rate = event.change.after["optimizer.learning_rate"]
    assert rate != config.optimizer.learning_rate
    with Session(dataclasses.replace(config, steps=512), tmp_path / "worse", resume="latest") as session:
        assert session.learners[0].hyperparameters.get("optimizer.learning_rate") == rate


def test_members_begin_with_different_hyperparameters(tmp_path):
    """A resumed member does not begin anew."""
    pbt, first = dataclasses.replace(PBT, spread=10.0), {}
    for seed in (1, 2, 3):
        config = config_of("ddppo", pbt=pbt, seed=seed)
        with Session(config, tmp_path / str(seed)) as session:
            member = member_module.RunMember(session, ExchangeFolder(tmp_path), str(seed), tuned_by(config))
            configured = session.learners[0].hyperparameters.as_dict()
            member._spread_out()
            first[seed] = session.learners[0].hyperparameters.get("optimizer.learning_rate")
            assert 0.1 <= first[seed] / configured["optimizer.learning_rate"] <= 10
            assert session.learners[0].hyperparameters.get("ppo.clip") == configured["ppo.clip"], "it is not tuned"
            session.run(until=128)
        train_member(config, tmp_path / str(seed), tmp_path, resume="latest")
        events = read_events([tmp_path / str(seed)])
        assert events[0].change.before["optimizer.learning_rate"] == first[seed]
    assert len(set(first.values())) == 3


def _ranks_join(population) -> tuple[list[float], float]:
    run = train_member(config_of("ddppo", deterministic=False), population / "worse", population)
    weights = next(run.learners[0].policy.parameters()).detach().flatten().tolist()
    return weights, run.learners[0].hyperparameters.get("optimizer.learning_rate")


def test_all_ranks_take_over_together(tmp_path):
    with_donor(tmp_path, config_of("ddppo"), **{"optimizer.learning_rate": 3e-5})
    (first, rate), (second, other_rate) = on_ranks(2, lambda: _ranks_join(tmp_path))
    assert first == second and rate == other_rate == 3e-5
    assert [event.change.donor for event in read_events([tmp_path / "worse"])] == ["donor"]


def test_a_member_that_begins_anew_forgets_its_old_results(tmp_path, monkeypatch):
    with_donor(tmp_path, config_of("ddppo"))
    shutil.rmtree(tmp_path / "donor")
    before, plain = [], member_module.RunMember._publish

    def watching(self):
        before.append(ExchangeFolder(tmp_path).results())
        plain(self)

    monkeypatch.setattr(member_module.RunMember, "_publish", watching)
    train_member(config_of("ddppo"), tmp_path / "donor", tmp_path)
    assert before[0] == {} and before[1]["donor"].objective < 1e9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pbt": PBTConfig()}, "pbt.every"),
        ({"pbt": dataclasses.replace(PBT, objective="win")}, "allowed: return, length"),
        ({"pbt": dataclasses.replace(PBT, tuned=("ppo.clop",))}, "ppo.clip"),
        ({"env": "paceline.envs.memory:Memory?length=7"}, "donor of this population trains in another environment"),
    ],
)
def test_members_that_are_refused(tmp_path, changes, message):
    with_donor(tmp_path, config_of("ddppo"))
    with pytest.raises(UsageError, match=message):
        train_member(config_of("ddppo", **changes), tmp_path / "new", tmp_path)
    assert not (tmp_path / "new").exists() and not (tmp_path / "exchange" / "new").exists()


def test_the_hyperparameters_of_each_system():
    assert tuned_by(config_of("ddppo")) == ("optimizer.learning_rate", "ppo.entropy_coef", "optimizer.beta1")
    assert tuned_by(config_of("d4pg")) == ("d4pg.actor_rate", "d4pg.critic_rate", "d4pg.noise")
    learned = PPOConfig(entropy_target=0.0)
    with pytest.raises(UsageError, match="ppo.entropy_coef"):
        tuned_by(Config(ppo=learned, pbt=PBTConfig(every=1, tuned=("ppo.entropy_coef",))))


def test_results_that_are_none_are_left_out(tmp_path, caplog):
    exchange, weights = ExchangeFolder(tmp_path), {"w": torch.arange(3.0)}
    exchange.of("a").mkdir(parents=True)
    result = MemberResult(
        name="a", step=5, objective=-1.5, hyperparameters={"ppo.clip": 0.1}, checkpoint="step_5", network="n"
    )
    exchange.publish(result, weights, {"agent": {"x": 1}})
    good = json.loads((tmp_path / "exchange" / "a" / "result.json").read_text())
    wrong = ["", "[]", '{"name": "b"}', json.dumps(good | {"objective": float("nan")}), json.dumps(good | {"name": 1})]
    for number, text in enumerate([*wrong, json.dumps(good | {"hyperparameters": {"ppo.clip": None}})]):
        (tmp_path / "exchange" / f"wrong_{number}").mkdir()
        (tmp_path / "exchange" / f"wrong_{number}" / "result.json").write_text(text)
    (tmp_path / "exchange" / "copied").mkdir()
    (tmp_path / "exchange" / "copied" / "result.json").write_text(json.dumps(good))
    with caplog.at_level(logging.WARNING):
        assert exchange.results() == {"a": result}
    assert caplog.text.count("is left out") == 6
    assert torch.equal(exchange.load(result).weights["w"], weights["w"])


def test_a_result_can_be_loaded_until_the_one_after_the_next(tmp_path):
    exchange = ExchangeFolder(tmp_path)
    exchange.of("a").mkdir(parents=True)
    results = [
        MemberResult(name="a", step=step, objective=None, hyperparameters={}, checkpoint=f"step_{step}", network="n")
        for step in (1, 2, 3)
    ]
    for result in results:
        exchange.publish(result, {"w": torch.full((1,), float(result.step))}, {})
    assert exchange.results()["a"] == results[2]
    assert float(exchange.load(results[1]).weights["w"]) == 2.0
    with pytest.raises(CheckpointError):
        exchange.load(results[0])


def test_moments_keep_their_memory():
    """A recorded step writes to it."""
    optimizers, settings = [], OptimizerConfig()
    for seed in (0, 1):
        torch.manual_seed(seed)
        weights = torch.nn.Parameter(torch.randn(3))
        optimizer = make_adam([weights], settings.learning_rate)
        for _ in range(seed + 1):
            weights.grad = torch.randn(3)
            optimizer.step()
        optimizers.append((optimizer, optimizer.state[weights]))
    (mine, moments), (other, expected) = optimizers
    memory = {name: values.data_ptr() for name, values in moments.items()}
    load_moments(mine, other.state_dict())
    assert moments.keys() == expected.keys() and all(torch.equal(moments[name], expected[name]) for name in moments)
    assert {name: values.data_ptr() for name, values in moments.items()} == memory
    load_moments(mine, {"state": {}, "param_groups": other.state_dict()["param_groups"]})
    assert all(not values.any() for values in moments.values())
