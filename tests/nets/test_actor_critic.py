"""The whole policy: any observations and actions, and recurrent states that never mix episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.collect.actor import Actor
from paceline.collect.inference import bucket_of
from paceline.errors import UsageError
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import CoreConfig, PolicyConfig
from paceline.nets.images import is_image
from paceline.nets.trunk import flatten
from paceline.pool.protocol import PoolSpec, StepBatch
from paceline.pool.spaces import MASK

CPU = torch.device("cpu")
VECTOR = spaces.Box(-1, 1, (3,), np.float32)


def spec_of(observation: spaces.Space, action: spaces.Space, num_envs: int = 2) -> PoolSpec:
    return PoolSpec(observation_space=observation, action_space=action, num_envs=num_envs)


def batch_of(spec: PoolSpec, **flags) -> StepBatch:
    count = spec.num_slots
    names = {leaf.name: leaf for leaf in spec.obs}
    fields = {key: np.zeros(count, bool) for key in ("terminated", "truncated", "lost")} | {
        "active": np.ones(count, bool)
    }
    fields |= {key: np.array(value) for key, value in flags.items()}
    obs = {name: np.stack([leaf.space.sample() for _ in range(count)]) for name, leaf in names.items()}
    return StepBatch(
        slots=np.arange(count),
        obs=obs,
        reward=np.zeros(count, np.float32),
        final_obs={name: values + values for name, values in obs.items()},
        step_seconds=np.zeros(count, np.float32),
        **fields,
    )


SPACES = {
    "vector": VECTOR,
    "discrete": spaces.Discrete(5),
    "multi_discrete": spaces.MultiDiscrete([2, 4]),
    "channels first": spaces.Box(0, 255, (3, 40, 48), np.uint8),
    "channels last": spaces.Box(0, 255, (40, 48, 3), np.uint8),
    "board": spaces.Box(0, 1, (3, 3, 2), np.int8),
    "binary board": spaces.MultiBinary((6, 7, 2)),
    "mixed": spaces.Dict(screen=spaces.Box(0, 255, (1, 40, 40), np.uint8), health=VECTOR, weapon=spaces.Discrete(3)),
}
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "box": spaces.Box(-2, 2, (2,), np.float32),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.MultiDiscrete([2, 2]), spaces.Box(0, 1, (1,), np.float32)]),
}


@pytest.mark.parametrize("observation", SPACES)
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("core", ["none", "gru"])
def test_any_spaces_any_core(observation, action, core):
    spec = spec_of(SPACES[observation], ACTIONS[action])
    config = PolicyConfig(encoder_size=16, core=CoreConfig(kind=core, hidden=8), normalize_obs=True)
    actor = Actor(ActorCritic(spec, config), spec, CPU)
    batch = batch_of(spec)
    decision = actor.decide(batch)
    assert torch.isfinite(decision.log_prob).all() and torch.isfinite(decision.value).all()
    for leaf in spec.actions:
        sent = actor.env_actions(decision.actions)[leaf.name]
        assert sent.shape == (2, *leaf.shape)
        assert all(leaf.space.contains(row.astype(leaf.dtype) if leaf.shape else row) for row in sent)


def test_channels_last_and_first_are_the_same_image():
    first, last = (
        spec_of(SPACES["channels first"], ACTIONS["discrete"]),
        spec_of(SPACES["channels last"], ACTIONS["discrete"]),
    )
    policies = []
    for spec in (first, last):
        torch.manual_seed(0)
        policies.append(ActorCritic(spec, PolicyConfig(encoder_size=16)))
    image = torch.randint(0, 255, (2, 3, 40, 48), dtype=torch.uint8)
    values = [policies[0].value({"obs": image}, torch.zeros(2, 0))]
    values.append(policies[1].value({"obs": image.permute(0, 2, 3, 1)}, torch.zeros(2, 0)))
    torch.testing.assert_close(*values)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, bool])
def test_boards_are_rows_of_zeros_and_ones(dtype):
    leaf = spec_of(spaces.Box(0, 1, (3, 3, 2), dtype), ACTIONS["discrete"]).obs[0]
    board = torch.from_numpy(np.stack([leaf.space.sample() for _ in range(4)]))
    assert not is_image(leaf) and torch.equal(flatten(board, leaf), board.float().flatten(1))


def test_masked_actions_are_never_taken():
    spec = spec_of(spaces.Dict({"obs": VECTOR, MASK: spaces.MultiBinary(4)}), spaces.Discrete(4), num_envs=64)
    actor = Actor(ActorCritic(spec, PolicyConfig()), spec, CPU)
    batch = batch_of(spec)
    batch.obs[MASK][:] = [0, 1, 0, 1]
    for _ in range(10):
        assert set(actor.decide(batch).actions["action"].tolist()) <= {1, 3}


class TestRecurrentState:
    @pytest.fixture
    def actor(self):
        spec = spec_of(VECTOR, spaces.Discrete(2), num_envs=3)
        policy = ActorCritic(spec, PolicyConfig(core=CoreConfig(kind="lstm", hidden=4)))
        return Actor(policy, spec, CPU), spec

    def test_stored_state_is_the_one_before_the_step(self, actor):
        actor, spec = actor
        first = actor.decide(batch_of(spec))
        assert not first.state.any() and first.episode_start.all()
        after = actor.state.clone()
        actor.observe(batch_of(spec))
        second = actor.decide(batch_of(spec))
        assert torch.equal(second.state, after) and after.any()
        assert not second.episode_start.any()

    def test_bootstrap_values_do_not_advance_the_state(self, actor):
        actor, spec = actor
        actor.decide(batch_of(spec))
        before = actor.state.clone()
        actor.last_values(batch_of(spec))
        assert torch.equal(actor.state, before)

    @pytest.mark.parametrize("end", ["terminated", "truncated", "lost"])
    def test_every_end_starts_the_next_episode_fresh(self, actor, end):
        actor, spec = actor
        actor.decide(batch_of(spec))
        actor.observe(batch_of(spec, **{end: [False, True, False]}))
        decision = actor.decide(batch_of(spec))
        assert decision.episode_start.tolist() == [False, True, False]
        assert not decision.state[1].any() and decision.state[0].any() and decision.state[2].any()

    def test_a_slot_that_comes_alive_starts_fresh(self, actor):
        actor, spec = actor
        actor.decide(batch_of(spec, active=[True, False, True]))
        actor.observe(batch_of(spec, active=[True, True, True]))
        decision = actor.decide(batch_of(spec))
        assert decision.episode_start.tolist() == [False, True, False]

    def test_cuts_have_the_state_after_the_row_and_the_final_observation(self, actor):
        actor, spec = actor
        actor.decide(batch_of(spec))
        after = actor.state.clone()
        batch = batch_of(spec, truncated=[False, False, True])
        outcome = actor.observe(batch)
        assert outcome.truncations is not None and outcome.truncations.rows.tolist() == [2]
        assert torch.equal(outcome.truncations.state[0], after[2])
        np.testing.assert_array_equal(outcome.truncations.obs["obs"][0], batch.final_obs["obs"][2])


def test_a_separate_critic_needs_a_policy_without_memory():
    with pytest.raises(UsageError, match="policy.core.kind none"):
        PolicyConfig(critic="separate", core=CoreConfig(kind="lstm"))


def rows_of(batch: StepBatch, rows: list[int]) -> StepBatch:
    """Some rows of a batch, as from a pool that does not wait for all slots."""
    fields = {
        name: getattr(batch, name)[rows]
        for name in ("slots", "reward", "terminated", "truncated", "active", "lost", "step_seconds")
    }
    return StepBatch(obs={name: v[rows] for name, v in batch.obs.items()}, final_obs=batch.final_obs, **fields)


def test_deciding_for_some_slots_at_a_time_equals_deciding_for_all_at_once():
    spec = spec_of(VECTOR, spaces.Discrete(2), num_envs=5)
    torch.manual_seed(0)
    policy = ActorCritic(spec, PolicyConfig(core=CoreConfig(kind="gru", hidden=4)))
    together, apart = Actor(policy, spec, CPU), Actor(policy, spec, CPU)
    for _ in range(4):
        batch = batch_of(spec)
        whole = together.decide(batch)
        for rows in ([4, 1], [0, 2, 3]):
            part = apart.decide(rows_of(batch, rows))
            torch.testing.assert_close(part.value, whole.value[rows])
            torch.testing.assert_close(part.state, whole.state[rows])
        torch.testing.assert_close(apart.state, together.state)
        ends = batch_of(spec, truncated=[False, True, False, False, True])
        expected = together.observe(ends)
        assert expected.truncations is not None
        seen = []
        for rows in ([1, 3], [0, 2, 4]):
            cuts = apart.observe(rows_of(ends, rows)).truncations
            assert cuts is not None
            seen += [rows[row] for row in cuts.rows]
            at = torch.isin(expected.truncations.rows, torch.tensor(rows))
            torch.testing.assert_close(cuts.state, expected.truncations.state[at])
            torch.testing.assert_close(cuts.obs["obs"], expected.truncations.obs["obs"][at])
        assert sorted(seen) == expected.truncations.rows.tolist()
        assert torch.equal(apart.episode_start, together.episode_start)


def test_decisions_carry_the_version_of_the_weights():
    spec = spec_of(VECTOR, spaces.Discrete(2))
    policy = ActorCritic(spec, PolicyConfig())
    actor = Actor(policy, spec, CPU)
    first = actor.decide(batch_of(spec))
    policy.version += 3
    assert actor.decide(batch_of(spec)).version == 3
    assert first.version == 0, "a decision keeps its own"
    assert policy.state_dict()["version"] == 3, "published with the weights"


@pytest.mark.parametrize(("count", "bucket"), [(1, 1), (2, 2), (3, 4), (5, 8), (9, 10), (10, 10)])
def test_recordings_are_shared_by_batches_of_similar_size(count, bucket):
    assert bucket_of(count, most=10) == bucket


@pytest.mark.parametrize("core", ["none", "lstm", "gru"])
def test_bfloat16_is_float32_within_its_precision(core):
    spec = spec_of(spaces.Box(0, 255, (3, 40, 40), np.uint8), spaces.Discrete(4), num_envs=8)
    torch.manual_seed(0)
    policy = ActorCritic(spec, PolicyConfig(encoder_size=32, core=CoreConfig(kind=core, hidden=16)))
    obs = {"obs": torch.randint(0, 255, (8, 3, 40, 40), dtype=torch.uint8)}
    state = 0.5 * torch.randn(8, policy.core.state_size)
    exact = policy.act(obs, state)
    policy.precision = torch.bfloat16
    for rounded, value in zip(policy.act(obs, state), exact, strict=True):
        assert rounded.dtype == torch.float32
        torch.testing.assert_close(rounded, value, rtol=0.05, atol=0.03)
    assert core == "none" or not torch.equal(rounded, exact[-1]), "it did compute in another precision"
