"""The whole policy: any mix of observations and actions, and recurrence that never mixes episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from paceline.errors import UsageError
from paceline.policy.actor import Actor
from paceline.policy.actor_critic import MASK, ActorCritic, PolicyConfig
from paceline.policy.cores import CoreConfig
from paceline.pool.protocol import PoolSpec, StepBatch

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
        sent = actor.env_actions(decision)[leaf.name]
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


def test_masked_actions_are_never_taken():
    spec = spec_of(spaces.Dict({"obs": VECTOR, MASK: spaces.MultiBinary(4)}), spaces.Discrete(4), num_envs=64)
    actor = Actor(ActorCritic(spec, PolicyConfig()), spec, CPU)
    batch = batch_of(spec)
    batch.obs[MASK][:] = [0, 1, 0, 1]
    for _ in range(10):
        assert set(actor.decide(batch).actions["action"].tolist()) <= {1, 3}


class TestRecurrentState:
    """Mistakes 14, 15, 17."""

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
        actor.values(batch_of(spec))
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
        assert outcome.cuts is not None and outcome.cuts.rows.tolist() == [2]
        assert torch.equal(outcome.cuts.state[0], after[2])
        np.testing.assert_array_equal(outcome.cuts.obs["obs"][0], batch.final_obs["obs"][2])


def test_a_separate_critic_needs_a_policy_without_memory():
    with pytest.raises(UsageError, match="policy.core.kind none"):
        PolicyConfig(critic="separate", core=CoreConfig(kind="lstm"))
