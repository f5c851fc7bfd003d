"""`population.spread`: each rank trains its own share of the policies."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.assembly import require_policies
from paceline.collect.kind_slots import all_kinds
from paceline.collect.policy_assignment import PolicyAssignment
from paceline.config import Config
from paceline.distributed.ownership import Ownership
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.learner.config import PPOConfig
from paceline.learner.policy_copy import PolicyCopy
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.population.config import LeagueConfig, PopulationConfig
from paceline.population.history import read_events
from paceline.population.league import League, Snapshots
from paceline.population.mapping import AgentMapping, OneOwnMapping, RandomMapping
from paceline.population.population import Population
from paceline.schedule import meeting
from paceline.schedule.appo import batch_chunks
from paceline.schedule.config import VERConfig
from paceline.session import Session, train
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, tiny
from tests.pool.multi_agent import Mortal
from tests.population.test_policies import several
from tests.population.test_rounds import populated

MORTALS = "tests.pool.multi_agent:mortals"
Row = tuple[int, ...]
"""Environment, agent, episode, step."""


def spread(policies: int, **changes: Any) -> PopulationConfig:
    return PopulationConfig(policies=policies, spread=True, **changes)


def plain(config: Config) -> Config:
    """Observations and rewards are not scaled, so that a test can read them."""
    policy = dataclasses.replace(config.policy, normalize_obs=False)
    return dataclasses.replace(config, policy=policy, ppo=dataclasses.replace(config.ppo, normalize_returns=False))


class RankAccount:
    """What one rank's test knows: who was drawn, which steps were taken, and which rows were learned from."""

    def __init__(self, patch: pytest.MonkeyPatch, own: list[int]) -> None:
        self.drawn: dict[tuple[int, int, int], int] = {}
        self.taken: Counter[Row] = Counter()
        self.learned: Counter[Row] = Counter()
        matches: Counter[int] = Counter()
        learners: list[PPOLearner] = []
        map_plain, learn_plain, make, step_plain = (
            OneOwnMapping.__call__,
            PPOLearner.learn,
            PPOLearner.__init__,
            Mortal.step,
        )

        def draw(mapping, envs, generator):
            chosen = map_plain(mapping, envs, generator)
            assert np.isin(chosen, own).any(1).all(), "every match teaches a policy of this rank"
            for env, row in zip(envs.tolist(), chosen.tolist(), strict=True):
                self.drawn |= {(env, matches[env], agent): policy for agent, policy in enumerate(row)}
                matches[env] += 1
            return chosen

        def made(learner, *arguments, **options):
            make(learner, *arguments, **options)
            learners.append(learner)

        def learn(learner, batch, progress):
            for row in batch.valid_rows().tolist():
                env, agent, episode, step = (int(number) for number in batch.obs["obs"][row].tolist())
                assert self.drawn[env, episode, agent] == own[learners.index(learner)]
                self.learned[env, agent, episode, step] += 1
            return learn_plain(learner, batch, progress)

        def step(env, actions):
            for agent in actions:
                self.taken[env.env, env.possible_agents.index(agent), env.episode, env.steps] += 1
            return step_plain(env, actions)

        patch.setattr(OneOwnMapping, "__call__", draw)
        patch.setattr(PPOLearner, "__init__", made)
        patch.setattr(PPOLearner, "learn", learn)
        patch.setattr(Mortal, "step", step)

    def rows_of(self, own: list[int], *, copies: bool) -> set[Row]:
        """The steps that policies of this rank have taken, or copies of others."""
        return {
            (env, agent, episode, step)
            for env, agent, episode, step in self.taken
            if (self.drawn[env, episode, agent] in own) != copies
        }


@pytest.mark.parametrize(("system", "overlap"), [("ddppo", False), ("ver", False), ("ver", True), ("appo", False)])
def test_each_rank_trains_its_policies_and_counts_the_steps_of_copies(tmp_path, system, overlap):
    ver = {"ver": VERConfig(overlap=True)} if overlap else {}
    config = plain(several(system, "gru", env=MORTALS, steps=600, population=spread(3), **ver))
    folder = str(tmp_path)

    def work():
        import os

        own = [0, 2] if os.environ["RANK"] == "0" else [1]
        with pytest.MonkeyPatch.context() as patch:
            account = RankAccount(patch, own)
            run = train(config, Path(folder))
        return {
            "step": run.step,
            "learned": account.learned,
            "own": account.rows_of(own, copies=False),
            "copies": account.rows_of(own, copies=True),
            "counted": run.population.metrics()["copy_steps"],
            "updated": [hasattr(learner, "optimizer") and len(learner.optimizer.state) for learner in run.learners],
            "weights": [learner.policy.state_dict() for learner in run.learners],
            "losses": {name for name in run.losses if name.endswith("/value_loss")},
        }

    first, second = on_ranks(2, work)
    assert first["step"] == second["step"] == sum(sum(found["learned"].values()) for found in (first, second)) >= 600
    counted, copies = first["counted"], len(first["copies"]) + len(second["copies"])
    for found in (first, second):
        assert set(found["learned"].values()) == {1} and found["learned"].keys() <= found["own"]
        assert found["counted"] == counted and found["copies"]
        assert found["losses"] == {f"policy_{policy}/value_loss" for policy in range(3)}
    if system == "appo":  # each update has a rank's batch, and all ranks update equally often
        shares = [sum(found["learned"].values()) / first["step"] for found in (first, second)]
        assert shares == pytest.approx([0.5, 0.5], abs=0.1)
    if system == "ddppo":
        assert all(found["learned"].keys() == found["own"] for found in (first, second)) and counted == copies
    else:  # some steps come after the last update
        assert 0.5 * copies < counted <= copies
    assert [bool(count) for count in first["updated"]] == [True, False, True]
    assert [bool(count) for count in second["updated"]] == [False, True, False]
    for mine, theirs in zip(first["weights"], second["weights"], strict=True):
        assert_equal(mine, theirs)
        assert int(mine["version"]) > 1


@pytest.mark.parametrize("system", ["ddppo", "appo"])
def test_ranks_that_share_a_policy_have_the_same_weights_and_optimiser(tmp_path, system):
    """Three ranks and two policies: ranks 0 and 2 average the gradients of policy 0. After each of its updates both
    have the same state, before the first of them sends its weights to all."""
    config, folder = several(system, steps=800, population=spread(2)), str(tmp_path)

    def work():
        states, refresh = [], meeting._refresh

        def noted(run, policies):
            states.extend(copy_of(learner) for learner in run.learners if isinstance(learner, PPOLearner))
            refresh(run, policies)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(meeting, "_refresh", noted)
            run = train(config, Path(folder))
        return run.step, [learner.policy.state_dict() for learner in run.learners], states

    found = on_ranks(3, work)
    for step, weights, _ in found:
        assert step == found[0][0] >= 800
        for mine, theirs in zip(weights, found[0][1], strict=True):
            assert_equal(mine, theirs)
            assert int(mine["version"]) > 1
    zero, one, two = (states for *_, states in found)
    assert len(zero) == len(one) > 1
    for number, (mine, theirs) in enumerate(zip(zero, two, strict=True), 1):
        assert_equal(mine, theirs)
        assert mine["weights/version"] == number and mine["targets/moments.count"] > 1
    assert any(not torch.equal(zero[-1][name], one[-1][name]) for name in zero[-1])


def copy_of(learner: PPOLearner) -> dict[str, torch.Tensor]:
    """The weights and normalisers of a learner, the memory of its optimiser, and its scale of returns."""
    moments = learner.optimizer.state_dict()["state"]
    found = {f"{key}/{name}": value for key, values in moments.items() for name, value in values.items()}
    found |= {f"weights/{name}": value for name, value in learner.policy.state_dict().items()}
    found |= {f"targets/{name}": value for name, value in without_running(learner.targets.state_dict()).items()}
    return {name: value.clone() for name, value in found.items()}


def without_running(scale: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in scale.items() if name != "running"}


@pytest.mark.parametrize(("policies", "ranks", "chunks"), [(3, 2, 4), (4, 2, 4), (5, 3, 4), (2, 2, 8), (1, 1, 8)])
def test_batches_of_appo_are_as_large_on_all_ranks(policies, ranks, chunks):
    """Of eight slots. Each rank updates one policy, and then all meet: a rank with fewer policies does not wait for
    twice as many chunks."""
    config = several("appo", policies=policies)
    observation, action = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
    (kind,) = all_kinds(PoolSpec(observation_space=observation, action_space=action, num_envs=8))
    for rank in range(ranks):
        group = Group(RankInfo(rank=rank, size=ranks), torch.device("cpu"), None)
        assert batch_chunks(config, kind, Ownership.of(group, policies, spread=ranks > 1)) == chunks


def test_rows_dropped_by_ranks_that_share_a_policy_are_added_up():
    losses = [{0: {"loss": 0.5, "dropped_rows": 3.0}}, {1: {"loss": 2.0}}, {0: {"loss": 0.5, "dropped_rows": 4.0}}]
    found = meeting._of_all_ranks(losses)
    assert found == {0: {"loss": 0.5, "dropped_rows": 7.0}, 1: {"loss": 2.0}}
    assert losses[0][0]["dropped_rows"] == 3.0


# ---------------------------------------------------------------- rounds


def test_a_take_over_from_another_rank_moves_everything(tmp_path):
    """Weights, optimiser, normalisers and hyper-parameters are bit-equal to those of the donor."""
    config, folder = (
        populated(population=spread(4), policy=PolicyConfig(hidden=(8,), normalize_obs=True)),
        str(tmp_path),
    )
    config = dataclasses.replace(
        config,
        ppo=PPOConfig(epochs=1, minibatches=1, normalize_returns=True),
        pbt=dataclasses.replace(config.pbt, replaced_share=0.5, every=700),
    )

    def work():
        records, replace = [], Population._replace

        def noted(population, policy, donor):
            before = {p: population._learners[p].policy.state_dict() for p in (policy, donor)}
            before = {p: {name: value.clone() for name, value in state.items()} for p, state in before.items()}
            replace(population, policy, donor)
            learners = {p: population._learners[p] for p in (policy, donor)}
            states = {p: one.handover() for p, one in learners.items() if isinstance(one, PPOLearner)}
            values = {p: one.hyperparameters.as_dict() for p, one in learners.items()}
            weights = {p: one.policy.state_dict() for p, one in learners.items()}
            weights = {p: {name: value.clone() for name, value in state.items()} for p, state in weights.items()}
            records.append((policy, donor, before, weights, values, states))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Population, "_replace", noted)
            run = train(config, Path(folder))
        return records, [learner.policy.state_dict() for learner in run.learners]

    (first, last), (second, others) = on_ranks(2, work)
    crossing = 0
    for mine, theirs in zip(first, second, strict=True):
        policy, donor, before, weights, values, _ = mine
        assert (policy, donor) == theirs[:2] and values == theirs[4] and values[policy] == values[donor]
        taken, given = mine[5].get(policy) or theirs[5][policy], mine[5].get(donor) or theirs[5][donor]
        assert_equal(without_version(taken["weights"]), without_version(given["weights"]))
        assert taken["weights"]["version"] == before[policy]["version"] + 1
        assert same(taken["agent"]["optimizer"]["state"], given["agent"]["optimizer"]["state"])
        assert taken["agent"]["optimizer"]["state"], "the optimiser has moments"
        scales = [{k: v for k, v in one["targets"].items() if k != "running"} for one in (taken, given)]
        assert scales[0] and same(*scales)
        for rank in (weights, theirs[3]):
            assert_equal(rank[policy], taken["weights"])
        crossing += policy % 2 != donor % 2
    assert crossing >= 2
    for mine, theirs in zip(last, others, strict=True):
        assert_equal(mine, theirs)
    assert read_events([tmp_path])


def without_version(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in weights.items() if name != "version"}


def same(left: Any, right: Any) -> bool:
    """Whether nested states are equal to the bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


# ---------------------------------------------------------------- draws


@pytest.mark.parametrize("agents", [1, 2, 4])
def test_every_match_has_a_policy_of_this_rank(agents):
    own = [1, 3]
    drawn = OneOwnMapping(RandomMapping(8, agents), own)(np.arange(8000), np.random.default_rng(0))
    counts = Counter(drawn.reshape(-1).tolist())
    assert np.isin(drawn, own).any(1).all()
    assert counts[1] == pytest.approx(counts[3], rel=0.1), "own policies play equally often"
    others = [counts[policy] for policy in range(8) if policy not in own]
    assert (set(others) == {0}) if agents == 1 else min(others) == pytest.approx(max(others), rel=0.15)
    assert np.isin(drawn, own).mean(0) == pytest.approx(np.isin(drawn, own).mean(), rel=0.1), "every agent learns"


def test_the_agent_that_stays_in_a_match_against_past_selves_learns_here(tmp_path):
    snapshots = Snapshots(tmp_path, 4, 16, writes=False)
    snapshots.add(0, [torch.nn.Linear(1, 1) for _ in range(4)])
    league = League(
        LeagueConfig(past_share=1.0),
        snapshots,
        AgentMapping(4, 4),
        seats=[torch.nn.Linear(1, 1)],
        first_seat=4,
        opponents=(),
        generator=np.random.default_rng(0),
        kinds=np.zeros(4, np.int64),
        copies=(0, 2, 3),
    )
    league.assignment = SimpleNamespace(players={}, is_used=lambda policy: False)  # type: ignore[assignment]
    league.refresh()
    drawn = league(np.arange(50), np.random.default_rng(1))
    assert (drawn == [4, 1, 4, 4]).all()


def test_steps_of_copies_that_were_not_reported_yet_are_saved():
    observation, action = spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(2)
    spec = PoolSpec(observation_space=observation, action_space=action, num_envs=3, agents_per_env=2)
    first, second = (
        PolicyAssignment(spec, AgentMapping(2, 2), np.random.default_rng(0), copies=(1,)) for _ in range(2)
    )
    no, slots = np.zeros(6, bool), np.arange(6)
    lost = slots == 1
    first.observe(StepBatch(slots, {}, np.zeros(6), no, no, {}, ~no, lost, np.zeros(6)))
    second.load_state_dict(first.state_dict())
    assert second.why_not_continued(first.state_dict()) is None and first.state_dict()["copies"] == [1]
    for assignment in (first, second):
        assert assignment.take_finished([]).copy_steps == 2, "three slots, one of them lost"
        assert assignment.take_finished([]).copy_steps == 0


# ---------------------------------------------------------------- refusals


def anyone(env, agents, generator):
    return [0] * len(agents)


def test_bad_settings_are_refused(tmp_path):
    with pytest.raises(UsageError, match="spread needs several policies; allowed: --population.policies 2 or more"):
        spread(1)
    with pytest.raises(UsageError, match=r"mapping tests.population.test_spread:anyone: .* allowed: random, agent"):
        spread(2, mapping="tests.population.test_spread:anyone")
    alone = spread(2)
    object.__setattr__(alone, "policies", 1)  # several policies are refused under d4pg by themselves
    with pytest.raises(UsageError, match="population.spread has no effect under d4pg; it is read by: ddppo, ver, appo"):
        Config(system="d4pg", population=alone)
    allowed = "paceline train --ranks 2 or more, torchrun, srun, or population.spread=False"
    refused = f"population.spread needs several ranks; allowed: {allowed}"
    with pytest.raises(UsageError, match=refused), Session(tiny(population=spread(2)), tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()
    kinds = SimpleNamespace(kinds=[SimpleNamespace(name="wolf"), SimpleNamespace(name="sheep")])
    refused = r"equal spaces, and those of .* differ \(wolf, sheep\); allowed: --population.no-spread"
    with pytest.raises(UsageError, match=refused):
        require_policies(kinds, tiny(population=spread(2)))  # type: ignore[arg-type]


def test_a_copy_has_no_optimiser_and_follows_its_hyperparameters():
    config = tiny()
    spec = PoolSpec(observation_space=spaces.Box(-1, 1, (3,), np.float32), action_space=spaces.Discrete(3), num_envs=2)
    copy = PolicyCopy(ActorCritic(spec, config.policy), config.resolved_ppo, config.optimizer)
    assert copy.learning_rate(0.5) == pytest.approx(config.optimizer.learning_rate / 2)
    copy.hyperparameters.set("optimizer.learning_rate", 1e-2)
    assert copy.learning_rate(0.0) == 1e-2 and not hasattr(copy, "optimizer")
