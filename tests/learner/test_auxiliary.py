"""CPC|A: its questions are about rows that follow in the same episode, and it learns only what can be predicted."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.accel.config import ComputeConfig
from paceline.checkpoint import CheckpointFolder
from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.errors import UsageError
from paceline.experience.rows import Decision, Outcome
from paceline.experience.sequences import MiniBatch, shuffled_sequences
from paceline.learner import auxiliary
from paceline.learner.auxiliary import CPCA, Questions, ask, make_auxiliary, spread
from paceline.learner.config import AuxiliaryConfig, OptimizerConfig, PPOConfig
from paceline.learner.loss_rows import LossRows, successors
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.nets.ppo_policy import Recall
from paceline.pool.protocol import PoolSpec
from paceline.session import train
from tests.experience.rollouts import Rollout, move, refill
from tests.experience.test_variable import cases, rollouts
from tests.integration.ranks import on_ranks
from tests.integration.test_training import assert_equal, tiny, weights
from tests.learner.test_ppo import alone, flat, prepare

CPU = torch.device("cpu")
PLACES = 8
RING = PoolSpec(observation_space=spaces.Discrete(PLACES), action_space=spaces.Discrete(2), num_envs=8)
POLICY = PolicyConfig(hidden=(16,), core=CoreConfig(kind="gru", hidden=16))
SMALL = AuxiliaryConfig(kind="cpca", steps=3, negatives=5, share=0.5, hidden=16)


def make(
    config: AuxiliaryConfig = SMALL, spec: PoolSpec = RING, group: Group | None = None, rate: float = 1e-3, **options
) -> tuple[ActorCritic, PPOLearner]:
    torch.manual_seed(0)
    policy = ActorCritic(spec, POLICY)
    learner = PPOLearner(
        policy,
        group or alone(),
        PPOConfig(auxiliary=config, **options),
        OptimizerConfig(learning_rate=rate),
        torch.Generator().manual_seed(0),
    )
    return policy, learner


def ring(
    policy: ActorCritic, *, turns: int = 16, seed: int = 0, predictable: bool = True, starts=None, valid=None
) -> Rollout:
    """Walks on a ring of 8 places, one step left or right. Observations are the places, or random places.

    `starts` and `valid` [T, N] say where episodes begin (by default a tenth of the time) and which rows count.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(starts[0]) if starts is not None else RING.num_envs
    rollout = Rollout(turns, count, CPU)
    state, place = policy.initial_state(count), torch.randint(PLACES, (count,), generator=generator)
    never = torch.zeros(count, dtype=torch.bool)
    for turn in range(turns):
        start = starts[turn] if starts is not None else torch.rand(count, generator=generator) < 0.1
        anywhere = torch.randint(PLACES, (count,), generator=generator)
        place = torch.where(start, anywhere, place)
        state = torch.where(start[:, None], 0.0, state)
        obs = {"obs": place if predictable else anywhere}
        with torch.no_grad():
            params, value, after = policy.act(obs, state)
            actions = policy.head.sample(params, generator)
            log_prob = policy.head.log_prob(params, actions)
        rollout.begin(
            Decision(
                obs=obs,
                actions=actions,
                log_prob=log_prob,
                value=value,
                state=state,
                episode_start=start,
                active=~never if valid is None else valid[turn],
                version=policy.version.clone(),
            )
        )
        rollout.complete(Outcome(reward=torch.zeros(count), terminated=never, truncated=never, lost=never))
        state, place = after, (place + 2 * actions["action"] - 1) % PLACES
    rollout.finish(torch.zeros(count), discount=0.99, trace_decay=0.95)
    return rollout


@st.composite
def flags(draw) -> tuple[torch.Tensor, torch.Tensor]:
    """Where episodes start and which rows are valid, [T, N]."""
    turns, count = draw(st.integers(1, 9)), draw(st.integers(2, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    starts = torch.rand(turns, count, generator=generator) < draw(st.sampled_from([0.0, 0.2, 0.5]))
    valid = torch.rand(turns, count, generator=generator) < draw(st.sampled_from([0.7, 1.0]))
    return starts, valid


def pairs(rollout: Rollout, batch: MiniBatch, steps: int) -> dict[tuple[int, int], int]:
    """The oracle: for every row of a mini-batch and 1, 2, ... `steps` steps ahead, the row that follows in the same
    episode without a gap, if the mini-batch has it."""
    place = {row: i for i, row in enumerate(batch.rows.tolist())}
    found = {}
    for row, i in place.items():
        for ahead in range(1, steps + 1):
            path = [row + step * rollout.num_streams for step in range(ahead + 1)]
            if not all(other in place and rollout.valid[other] for other in path):
                break
            if any(rollout.episode_start[other] for other in path[1:]):
                break
            found[i, ahead] = place[path[-1]]
    return found


def chains(following: torch.Tensor, continues: torch.Tensor, steps: int) -> dict[tuple[int, int], int]:
    found = {}
    for i in range(len(following)):
        row = i
        for ahead in range(1, steps + 1):
            if not continues[row]:
                break
            row = int(following[row])
            found[i, ahead] = row
    return found


@settings(max_examples=60)
@given(flags(), st.sampled_from(["packed", "columns"]), st.integers(1, 2), st.integers(1, 5), st.floats(0.1, 1.0))
def test_the_questions_are_about_what_followed(flags, sequences, minibatches, steps, share):
    starts, valid = flags
    policy, learner = make(sequences=sequences, minibatches=minibatches)
    rollout = ring(policy, turns=len(starts), starts=starts, valid=valid)
    prepare(learner, rollout)
    config = dataclasses.replace(SMALL, steps=steps, share=share)
    for batch in learner._minibatches.split(rollout):
        if len(batch.rows) == 0:
            continue
        sample = learner._minibatches.gather(rollout, batch)
        following, continues = successors(sample.recall, sample.valid, len(batch.rows))
        expected = pairs(rollout, batch, steps)
        assert chains(following, continues, steps) == expected
        check(ask(following, continues, sample.valid, config), expected, rollout.valid[batch.rows])


def check(questions: Questions, expected: dict[tuple[int, int], int], valid: torch.Tensor) -> None:
    path, ahead, answer, decoys, is_asked, is_fair = (part.tolist() for part in questions)
    for p, start in enumerate(path[0]):
        horizon = max((steps for row, steps in expected if row == start), default=0)
        assert [path[step][p] for step in range(1, horizon + 1)] == [
            expected[start, step] for step in range(1, horizon + 1)
        ], "what the actions are taken of"
        for q in range(len(answer)):
            assert is_asked[q][p] == (horizon > 0)
            for decoy, fair in zip(decoys[q][p], is_fair[q][p], strict=True):
                assert decoy != answer[q][p] or len(valid) == 1
                assert fair == (is_asked[q][p] and bool(valid[decoy]))
            if is_asked[q][p]:
                assert answer[q][p] == expected[start, ahead[q][p] + 1]


@settings(max_examples=60)
@given(**cases)
def test_what_followed_where_slots_differ_in_steps(seed, steps, num_slots, faults, preempted):
    """Each row is named by its slot and step. Its successor is the next step of that slot, in the same episode and of
    the same rollout."""
    for _, rollout, _, _ in rollouts(seed, steps, num_slots, faults, preempted):
        stale = rollout.stale if rollout.stale is not None else torch.zeros_like(rollout.valid)
        for batch in shuffled_sequences(rollout, 2, None):
            rows = batch.rows
            if len(rows) == 0:  # never evaluated
                continue
            following, continues = successors(Recall(torch.empty(0), batch.batch_sizes), None, len(rows))
            place = {name: i for i, name in enumerate(rollout.log_prob[rows].tolist())}
            for i, name in enumerate(place):
                after = place.get(name + 1)
                if after is not None and (rollout.episode_start[rows[after]] or stale[rows[after]] != stale[rows[i]]):
                    after = None
                assert bool(continues[i]) == (after is not None)
                assert following[i] == (i if after is None else after)


def test_every_pair_and_every_decoy_is_asked_about_at_some_time():
    starts = torch.zeros(6, 2, dtype=torch.bool)
    starts[2, 0] = starts[4, 1] = True
    policy, learner = make(sequences="columns", minibatches=1)
    rollout = ring(policy, turns=6, starts=starts)
    batch = next(iter(learner._minibatches.split(rollout)))
    prepare(learner, rollout)
    sample = learner._minibatches.gather(rollout, batch)
    asked, decoys = set(), set()
    for _ in range(300):
        questions = ask(*successors(sample.recall, sample.valid, 12), sample.valid, SMALL)
        for q, p in itertools.product(range(2), range(questions.path.shape[1])):
            if questions.is_asked[q, p]:
                asked.add((int(questions.path[0, p]), int(questions.ahead[q, p]) + 1))
                decoys |= {(int(questions.answer[q, p]), int(decoy)) for decoy in questions.decoys[q, p]}
    expected = pairs(rollout, batch, 3)
    assert asked == expected.keys()
    assert decoys == {(answer, row) for answer in expected.values() for row in range(12) if row != answer}


@given(st.integers(1, 200), st.floats(0.01, 1.0))
def test_starts_are_different_rows(num_rows, share):
    rows = spread(num_rows, share, CPU)
    assert len(set(rows.tolist())) == len(rows) == max(1, round(share * num_rows))
    assert rows.min() >= 0 and rows.max() < num_rows


def test_any_row_may_be_a_start():
    seen = torch.cat([spread(10, 0.3, CPU) for _ in range(300)])
    assert seen.bincount(minlength=10).min() > 30


def test_predictions_follow_the_actions_up_to_their_answer():
    """The GRU starts from the belief at the first row and steps through the actions of the rows before the answer."""
    cpca = CPCA(4, 5, 2, SMALL)
    belief, actions = torch.randn(12, 5), torch.randn(12, 2)
    rows = torch.arange(12)
    questions = ask((rows + 1).clamp(max=11), rows < 11, None, SMALL)
    states = cpca._predict(belief, actions, questions)
    weights = [getattr(cpca.future.rnn, f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    for q, p in itertools.product(range(2), range(6)):
        start, last = int(questions.path[0, p]), int(questions.answer[q, p])
        state = torch.tanh(cpca.start(belief[start : start + 1]))
        for row in range(start, last):
            state = torch.gru_cell(actions[row : row + 1], state, *weights)
        if questions.is_asked[q, p]:
            torch.testing.assert_close(states[q, p], state[0])


def test_it_looks_at_no_value_where_updates_are_recorded():
    """On meta tensors: reading a value, or mixing in a tensor on the host, would fail."""
    with torch.device("meta"):
        cpca = CPCA(4, 5, 2, SMALL)
        features, belief, actions = torch.empty(12, 4), torch.empty(12, 5), torch.empty(12, 2)
        recall = Recall(torch.empty(3, 5), episode_start=torch.empty(4, 3, dtype=torch.bool))
        valid = torch.empty(12, dtype=torch.bool)
    rows = LossRows({}, {}, actions, *[valid] * 6, features, belief, valid, recall)
    cpca(rows).loss.backward()
    assert all(parameter.grad.is_meta for parameter in cpca.parameters())


def learn(predictable: bool, updates: int = 120, **options) -> list[dict[str, float]]:
    config = dataclasses.replace(SMALL, weight=1.0, share=1.0, hidden=32)
    policy, learner = make(config, rate=5e-3, epochs=1, minibatches=1, **options)
    return [
        learner.update(ring(policy, turns=12, seed=update, predictable=predictable), 0.0) for update in range(updates)
    ]


CHANCE = 2 * math.log(2)
"""The loss of a classifier that always says one half."""


@pytest.mark.parametrize("sequences", ["packed", "columns"])
def test_what_can_be_predicted_is_learned(sequences):
    """An eighth of the decoys show the right place too: the best possible loss is 0.39, not 0."""
    reports = learn(True, sequences=sequences)
    assert reports[0]["cpca_loss"] > 0.9 * CHANCE
    assert np.mean([report["cpca_loss"] for report in reports[-10:]]) < 0.9
    assert np.mean([report["cpca_accuracy"] for report in reports[-10:]]) > 0.75


def test_what_cannot_be_predicted_stays_at_chance():
    reports = learn(False)
    assert np.mean([report["cpca_loss"] for report in reports[-10:]]) == pytest.approx(CHANCE, abs=0.1)
    assert np.mean([report["cpca_accuracy"] for report in reports[-10:]]) == pytest.approx(0.5, abs=0.07)


def test_it_teaches_the_encoder_and_the_memory_and_not_the_head():
    policy, learner = make()
    rollout = ring(policy)
    prepare(learner, rollout)
    sample = learner._minibatches.gather(rollout, next(iter(learner._minibatches.split(rollout))))
    evaluation = policy.evaluate(sample.obs, sample.actions, sample.recall)
    for parameter in policy.parameters():
        parameter.grad.zero_()
    rows = LossRows.of(policy, sample, evaluation, sample.advantage, sample.returns)
    learner._auxiliary(rows).loss.backward()
    for name, parameter in policy.named_parameters():
        assert (parameter.grad.abs().max() > 0) == name.startswith(("trunk", "core")), name
    for name, parameter in learner._auxiliary.named_parameters():
        assert parameter.grad.abs().max() > 0, name


def test_images_alone_are_predicted_where_there_are_any():
    """Vectors may hold the previous action, which gives the answer away."""
    both = spaces.Dict(screen=spaces.Box(0, 255, (1, 40, 40), np.uint8), last=spaces.Discrete(2))
    spec = PoolSpec(observation_space=both, action_space=spaces.Discrete(2), num_envs=2)
    policy = ActorCritic(spec, dataclasses.replace(POLICY, encoder_size=24))
    cpca = make_auxiliary(policy, SMALL, alone())
    assert cpca.from_features.in_features == 24 == policy.trunk.out_features - 16
    vectors_only = make_auxiliary(ActorCritic(RING, POLICY), SMALL, alone())
    assert vectors_only.from_features.in_features == 16
    # The features of the image come first. The vector does not change them.
    obs = {"screen": torch.randint(0, 255, (3, 1, 40, 40), dtype=torch.uint8)}
    features = [policy.trunk(obs | {"last": torch.full((3,), last)}) for last in (0, 1)]
    assert torch.equal(features[0][:, :24], features[1][:, :24])
    assert not torch.equal(features[0], features[1])


def test_actions_are_seen_as_the_environment_gets_them():
    space = spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2), spaces.Box(-1, 1, (2,), np.float32)])
    spec = PoolSpec(observation_space=spaces.Discrete(2), action_space=space, num_envs=2)
    policy = ActorCritic(spec, POLICY)
    names = [leaf.name for leaf in spec.actions]
    values = [torch.tensor([2]), torch.tensor([[1, 0]], dtype=torch.int8), torch.tensor([[0.5, -7.0]])]
    features = policy.action_features(dict(zip(names, values, strict=True)))
    assert features.tolist() == [[0, 0, 1, 1, 0, 0.5, -1]]
    assert policy.num_action_features == 7


def test_nothing_changes_where_it_is_off():
    results = []
    for config in (AuxiliaryConfig(), AuxiliaryConfig(hidden=7)):
        policy, learner = make(config)
        report = learner.update(ring(policy), 0.0)
        assert learner.state_dict().keys() == {"optimizer", "hyperparameters", "parts"}
        assert not report.keys() & set(CPCA.METRICS)
        results.append(flat(policy))
    assert torch.equal(*results)


def test_the_policys_gradient_is_clipped_by_its_own_norm():
    _, learner = make()
    learner._gradients.flat.fill_(1.0)
    learner._parts["auxiliary"].fill_(1e6)
    learner._apply_hyperparameters(0.0)
    assert learner._apply(torch.ones(learner._num_sums))[-2] == pytest.approx(math.sqrt(len(learner._parts["policy"])))
    for part in learner._parts.values():
        assert part.norm() == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_rank_with_hardly_any_row_asks_nothing(rows):
    policy, learner = make(sequences="packed", epochs=1, minibatches=1)
    rollout = ring(policy)
    rollout.valid[rows:] = False
    report = learner.update(rollout, 0.0)
    assert report["cpca_loss"] == report["cpca_accuracy"] == 0.0
    assert all(math.isfinite(value) for value in report.values())


def test_bfloat16_policies_can_be_taught():
    policy, learner = make(epochs=1)
    policy.precision = torch.bfloat16
    assert 0.5 < learner.update(ring(policy), 0.0)["cpca_loss"] < 3.0


def test_resumed_runs_are_bit_equal(tmp_path):
    """With the learned entropy coefficient, too: everything that is trained is in the checkpoint."""
    ppo = dataclasses.replace(tiny().ppo, auxiliary=SMALL, entropy_target=0.5)
    marker = tmp_path / "stopped"
    config = tiny(env=f"tests.integration.test_training:Stopping?marker={marker}", ppo=ppo)
    stopped = train(config, tmp_path / "parts")
    assert stopped.interrupted and 0 < stopped.step < config.steps
    train(config, tmp_path / "parts", resume="latest")
    train(config, tmp_path / "whole")
    assert_equal(weights(tmp_path / "parts"), weights(tmp_path / "whole"))
    parts, whole = (
        CheckpointFolder(tmp_path / name / "checkpoints").load().state["agent"] for name in ("parts", "whole")
    )
    assert parts.keys() == whole.keys() == {"optimizer", "hyperparameters", "parts", "auxiliary", "entropy"}
    for name in ("auxiliary", "entropy"):
        assert_equal(parts[name], whole[name])


def test_two_ranks_with_the_data_of_one_are_one():
    """The questions are random, so both ranks draw the same ones: their mean gradient is that of one rank."""

    def work():
        group = Group.join("cpu")
        policy, learner = make(group=group)
        learner.update(ring(policy), 0.0)
        result = flat(policy), learner._auxiliary.state_dict()
        group.close()
        return result

    first, second = on_ranks(2, work)
    policy, learner = make()
    learner.update(ring(policy), 0.0)
    assert torch.equal(first[0], second[0])
    torch.testing.assert_close(first[0], flat(policy), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(first[1], learner._auxiliary.state_dict(), rtol=1e-4, atol=1e-6)


def test_ranks_with_other_seeds_and_other_data_agree():
    def work():
        group = Group.join("cpu")
        torch.manual_seed(0)
        policy = ActorCritic(RING, POLICY)
        torch.manual_seed(group.rank)  # as in a run: from here on ranks draw different weights
        config = PPOConfig(auxiliary=SMALL)
        learner = PPOLearner(policy, group, config, OptimizerConfig(), torch.Generator().manual_seed(0))
        report = learner.update(ring(policy, seed=group.rank), 0.0)
        group.close()
        return flat(policy), torch.cat([p.flatten() for p in learner._auxiliary.state_dict().values()]), report

    first, second = on_ranks(2, work)
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert first[2] == second[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "cpc"}, "allowed: none, cpca"),
        ({"steps": 0}, "auxiliary.steps must be at least 1"),
        ({"negatives": 0}, "auxiliary.negatives must be at least 1"),
        ({"hidden": 0}, "auxiliary.hidden must be at least 1"),
        ({"weight": 0.0}, "kind none switches the loss off"),
        ({"share": 0.0}, "above 0 and at most 1"),
        ({"share": 1.5}, "above 0 and at most 1"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        AuxiliaryConfig(**options)


def test_policies_without_memory_are_refused():
    policy = ActorCritic(RING, PolicyConfig(hidden=(8,)))
    with pytest.raises(UsageError, match="policy.core.kind lstm, gru"):
        PPOLearner(policy, alone(), PPOConfig(auxiliary=SMALL), OptimizerConfig())


def plain_questions(following, continues, valid, config) -> Questions:
    """Questions about the next row of every row, with fixed decoys: a recorded and an eager step can be compared."""
    rows = torch.arange(len(following), device=following.device)
    answer = following.expand(2, -1)
    decoys = (answer[..., None] + torch.arange(1, config.negatives + 1, device=rows.device)) % len(rows)
    is_asked = continues.expand(2, -1)
    path = torch.stack([rows] + [following] * config.steps)
    return Questions(path, torch.zeros_like(answer), answer, decoys, is_asked, is_asked[..., None] & valid[decoys])


def on_gpu(graphs: bool, updates: int, rate: float) -> tuple[ActorCritic, list[dict[str, float]]]:
    device = torch.device("cuda")
    torch.manual_seed(0)
    policy = ActorCritic(RING, POLICY).to(device)
    learner = PPOLearner(
        policy,
        Group(RankInfo(), device, None),
        PPOConfig(epochs=2, minibatches=2, sequences="columns", auxiliary=SMALL, entropy_target=0.5),
        OptimizerConfig(learning_rate=rate),
        torch.Generator().manual_seed(0),
        ComputeConfig(cuda_graphs=graphs),
    )
    source = ActorCritic(RING, POLICY)
    rollout = ring(source)
    move(rollout, device)
    reports = []
    for update in range(updates):
        refill(rollout, ring(source, seed=update if rate else 0))
        reports.append(learner.update(rollout, 0.0))
    return policy, reports


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_recorded_updates_are_the_eager_ones(monkeypatch):
    monkeypatch.setattr(auxiliary, "ask", plain_questions)
    eager, recorded = (on_gpu(graphs, 6, 1e-3) for graphs in (False, True))
    torch.testing.assert_close(flat(eager[0]), flat(recorded[0]), rtol=1e-3, atol=1e-5)
    for left, right in zip(eager[1], recorded[1], strict=True):
        assert left == pytest.approx(right, rel=1e-2, abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_replays_ask_anew():
    """The same rows and nearly the same weights, but other questions: no two replays have the same loss."""
    _, reports = on_gpu(True, 8, 1e-12)
    losses = [report["cpca_loss"] for report in reports]
    assert len(set(losses)) == len(losses)
