"""Running statistics equal those of all data at once, however ranks share it; returns restart at episode ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.errors import UsageError
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from paceline.nets.encoders import NatureCNN
from paceline.nets.normalizer import CLIP, ObservationNormalizer, ReturnNormalizer, RunningMoments
from paceline.pool.protocol import PoolSpec

splits = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=5)
"""Rows per rank, for each of several updates; a rank, or all of them, may have none."""


@settings(max_examples=60)
@given(splits=splits, offset=st.sampled_from([0.0, -30.0, 1e4]), seed=st.integers(0, 1000))
def test_any_split_gives_the_moments_of_all_data(splits, offset, seed):
    torch.manual_seed(seed)
    moments, seen = RunningMoments((3,)), []
    for ranks in splits:
        rows = [torch.randn(count, 3, dtype=torch.float64) * 2 + offset for count in ranks]
        sums = [(torch.tensor(float(len(r))).double(), r.sum(0), r.square().sum(0)) for r in rows]
        moments.update_from_sums(*(sum(parts) for parts in zip(*sums, strict=True)))  # sum() is the all-reduce
        seen += rows
    data = torch.cat(seen)
    assert moments.count == len(data)
    if len(data):
        torch.testing.assert_close(moments.mean, data.mean(0), atol=1e-9, rtol=1e-9)
        torch.testing.assert_close(moments.var, data.var(0, correction=0), atol=1e-6, rtol=1e-6)
    else:
        assert torch.equal(moments.mean, torch.zeros(3).double())
        assert torch.equal(moments.var, torch.ones(3).double())


def test_ranks_with_more_rows_weigh_more():
    """One row of 0 on one rank and three of 4 on the other: the mean is 3, not the 2 of averaged means."""
    normalizer = ObservationNormalizer((1,))
    normalizer.absorb(normalizer.sums(torch.zeros(1, 1)) + normalizer.sums(torch.full((3, 1), 4.0)))
    assert normalizer.moments.mean.item() == 3
    assert normalizer.moments.var.item() == 3


@settings(max_examples=25)
@given(
    shape=st.sampled_from([(3,), (), (2, 2), (2, 4, 5)]),
    dtype=st.sampled_from(["float32", "uint8"]),
    seed=st.integers(0, 99),
)
def test_normalised_rows_have_zero_mean_and_unit_variance(shape, dtype, seed):
    torch.manual_seed(seed)
    rows = torch.randint(0, 256, (60, *shape), dtype=torch.uint8)
    if dtype == "float32":
        rows = rows.float() * 0.02 - 1
    normalizer = ObservationNormalizer(shape)
    for part in rows.split([7, 20, 33]):
        normalizer.absorb(normalizer.sums(part))
    out = normalizer(rows)
    dims = (0, 2, 3) if len(shape) == 3 else (0,)
    assert out.dtype == torch.float32
    assert out.shape == rows.shape
    torch.testing.assert_close(out.mean(dims), torch.zeros(shape[:1] if len(shape) == 3 else shape), atol=1e-4, rtol=0)
    torch.testing.assert_close(
        out.var(dims, correction=0), torch.ones(shape[:1] if len(shape) == 3 else shape), atol=1e-3, rtol=0
    )


def test_large_offsets_keep_their_precision():
    torch.manual_seed(0)
    rows = torch.randn(500, 2, dtype=torch.float64) + 1e4
    normalizer = ObservationNormalizer((2,))
    for part in rows.float().split(100):
        normalizer.absorb(normalizer.sums(part))
    torch.testing.assert_close(normalizer.moments.var, rows.float().double().var(0, correction=0), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("mean", "deviation"), [(100.0, 1.0), (1e4, 1.0), (-5e3, 10.0)])
def test_images_with_a_large_mean_keep_their_variance(mean, deviation):
    """For example depth in millimetres, where float32 squares lose the variance."""
    torch.manual_seed(0)
    images = torch.randn(6, 2, 32, 48) * deviation + mean
    normalizer = ObservationNormalizer((2, 32, 48))
    for part in images.split([1, 0, 5]):
        normalizer.absorb(normalizer.sums(part))
    exact = images.double()
    torch.testing.assert_close(normalizer.moments.mean.flatten(), exact.mean((0, 2, 3)), rtol=1e-7, atol=0)
    torch.testing.assert_close(normalizer.moments.var.flatten(), exact.var((0, 2, 3), correction=0), rtol=1e-4, atol=0)


def test_identity_before_any_data():
    rows = torch.tensor([[1e6, -3.0]])
    normalizer = ObservationNormalizer((2,))
    assert torch.equal(normalizer(rows), rows)
    normalizer.absorb(normalizer.sums(rows[:0]))
    assert torch.equal(normalizer(rows), rows)


def test_clipping_and_constant_elements():
    normalizer = ObservationNormalizer((2,))
    normalizer.absorb(normalizer.sums(torch.tensor([[1.0, 7.0], [-1.0, 7.0]])))
    assert normalizer(torch.tensor([[100.0, 7.0], [-100.0, 8.0]])).tolist() == [[CLIP, 0.0], [-CLIP, CLIP]]


def test_the_noise_of_dark_images_is_not_amplified():
    normalizer = ObservationNormalizer((1, 4, 4))
    normalizer.absorb(normalizer.sums(torch.zeros(3, 1, 4, 4, dtype=torch.uint8)))
    assert normalizer(torch.ones(1, 1, 4, 4, dtype=torch.uint8)).max().item() == pytest.approx(10 / 255)


def test_image_statistics_are_per_channel():
    images = torch.zeros(2, 2, 3, 3, dtype=torch.uint8)
    images[:, 1] = 255
    normalizer = ObservationNormalizer((2, 3, 3))
    normalizer.absorb(normalizer.sums(images))
    assert normalizer.moments.mean.flatten().tolist() == pytest.approx([0, 1])
    assert normalizer.moments.count == 18


def test_rows_are_left_untouched():
    rows = torch.rand(4, 3)
    kept = rows.clone()
    normalizer = ObservationNormalizer((3,))
    normalizer.absorb(normalizer.sums(rows))
    normalizer(rows)
    assert torch.equal(rows, kept)


def test_statistics_travel_with_the_weights():
    normalizer, copy = ObservationNormalizer((3,)), ObservationNormalizer((3,))
    normalizer.absorb(normalizer.sums(torch.randn(20, 3) * 5 + 2))
    copy.load_state_dict(normalizer.state_dict())
    rows = torch.randn(4, 3)
    assert torch.equal(copy(rows), normalizer(rows))
    for each in (normalizer, copy):
        each.absorb(each.sums(rows))
    assert torch.equal(copy(rows), normalizer(rows))
    assert not list(normalizer.parameters())


def test_an_encoder_does_not_scale_normalised_images():
    images = torch.randint(0, 256, (3, 4, 36, 36), dtype=torch.uint8)
    normalizer, encoder = ObservationNormalizer((4, 36, 36)), NatureCNN((4, 36, 36), hidden=8)
    torch.testing.assert_close(encoder(normalizer(images)), encoder(images))


class Oracle:
    """Discounted returns of one slot at a time, from a list per episode."""

    def __init__(self, num_slots: int, gamma: float) -> None:
        self.gamma = gamma
        self.episodes: list[list[float]] = [[] for _ in range(num_slots)]
        self.returns: list[float] = []

    def step(self, slot: int, reward: float, ended: bool, real: bool) -> None:
        if not real:
            self.episodes[slot] = []
            return
        self.episodes[slot].append(reward)
        rewards = reversed(self.episodes[slot])
        self.returns.append(sum(reward * self.gamma**age for age, reward in enumerate(rewards)))
        if ended:
            self.episodes[slot] = []


def row(num_slots: int, *, reward: list[float], terminated=(), truncated=(), not_real=()) -> dict[str, Tensor]:
    def flags(slots):
        return torch.tensor([slot in slots for slot in range(num_slots)])

    return {
        "slots": torch.arange(num_slots),
        "reward": torch.tensor(reward),
        "terminated": flags(terminated),
        "truncated": flags(truncated),
        "real": ~flags(not_real),
    }


@settings(max_examples=40)
@given(gamma=st.sampled_from([0.0, 0.9, 1.0]), num_steps=st.integers(1, 12), seed=st.integers(0, 1000))
def test_returns_match_the_oracle(gamma, num_steps, seed):
    """Any slots in any order, with terminations, truncations and rows without a decision."""
    generator = torch.Generator().manual_seed(seed)
    normalizer, oracle = ReturnNormalizer(4, gamma=gamma), Oracle(4, gamma)
    total = torch.zeros(3, dtype=torch.float64)
    for _ in range(num_steps):
        slots = torch.randperm(4, generator=generator)[: int(torch.randint(1, 5, (), generator=generator))]
        chance = torch.rand(3, len(slots), generator=generator)
        reward = torch.randn(len(slots), generator=generator)
        terminated, real = chance[0] < 0.2, chance[2] < 0.9
        truncated = (chance[1] < 0.2) & ~terminated
        total += normalizer.observe(slots, reward, terminated, truncated, real)
        for i, slot in enumerate(slots.tolist()):
            oracle.step(slot, reward[i].item(), bool(terminated[i] or truncated[i]), bool(real[i]))
    normalizer.absorb(total)
    assert normalizer.moments.count == len(oracle.returns)
    if oracle.returns:
        returns = torch.tensor(oracle.returns, dtype=torch.float64)
        torch.testing.assert_close(normalizer.moments.mean, returns.mean())
        torch.testing.assert_close(normalizer.moments.var, returns.var(correction=0))


def test_running_returns_restart_after_truncation_and_termination():
    """Slot 0 is truncated, slot 1 terminated, slot 2 goes on: only slot 2 keeps its 100."""
    normalizer = ReturnNormalizer(3, gamma=0.5)
    normalizer.observe(**row(3, reward=[100.0, 100.0, 100.0], truncated=[0], terminated=[1]))
    assert normalizer.running.tolist() == [0, 0, 100]
    sums = normalizer.observe(**row(3, reward=[1.0, 1.0, 1.0]))
    assert normalizer.running.tolist() == [1, 1, 51]
    assert sums.tolist() == [3, 53, 1 + 1 + 51**2]


def test_final_reward_of_an_episode_counts():
    sums = ReturnNormalizer(1, gamma=0.5).observe(**row(1, reward=[7.0], terminated=[0]))
    assert sums.tolist() == [1, 7, 49]


def test_autoreset_reward_never_enters_normaliser():
    """Rows without a decision (a first batch, a replaced simulator) are ignored, whatever they hold."""
    normalizer = ReturnNormalizer(2, gamma=0.5)
    normalizer.observe(**row(2, reward=[8.0, 8.0]))
    sums = normalizer.observe(**row(2, reward=[math.nan, 2.0], not_real=[0]))
    assert sums.tolist() == [1, 6, 36]
    assert normalizer.running.tolist() == [0, 6]


def test_rewards_are_scaled_not_centred():
    normalizer = ReturnNormalizer(2, gamma=0.0)
    rewards = torch.tensor([5.0, 1.0])
    assert torch.equal(normalizer(rewards), rewards)
    normalizer.absorb(normalizer.observe(**row(2, reward=[5.0, 1.0])))
    torch.testing.assert_close(normalizer(rewards), rewards / 2)  # the standard deviation of 5 and 1
    assert normalizer(torch.tensor([1000.0, -1000.0])).tolist() == [10, -10]


def test_ranks_share_the_scale_of_all_returns():
    ranks = [ReturnNormalizer(1, gamma=0.0), ReturnNormalizer(3, gamma=0.0)]
    sums = [ranks[0].observe(**row(1, reward=[5.0])), ranks[1].observe(**row(3, reward=[1.0, 1.0, 1.0]))]
    for rank in ranks:
        rank.absorb(sums[0] + sums[1])
    assert ranks[0].moments.var == ranks[1].moments.var == 3
    assert ranks[0].scale == ranks[1].scale


def test_running_returns_survive_a_checkpoint():
    normalizer, restored = ReturnNormalizer(2, gamma=0.5), ReturnNormalizer(2, gamma=0.5)
    normalizer.observe(**row(2, reward=[3.0, 4.0]))
    restored.load_state_dict(normalizer.state_dict())
    assert restored.observe(**row(2, reward=[0.0, 0.0])).tolist() == [2, 3.5, 1.5**2 + 2**2]


def test_error_messages_say_what_is_allowed():
    with pytest.raises(UsageError, match=r"within \[0, 1\]"):
        ReturnNormalizer(1, gamma=1.5)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_boards_are_scaled_up_however_little_they_vary(dtype):
    """A plane of zeros and ones has no noise. As an image of bytes it would be almost invisible."""
    space = spaces.Box(0, 1, (1, 4, 4), dtype)
    spec = PoolSpec(observation_space=space, action_space=spaces.Discrete(2), num_envs=1)
    policy = ActorCritic(spec, PolicyConfig(normalize_obs=True, hidden=(4,)))
    (normalizer,) = policy.normalizers
    board = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (500, 1, 4, 4)).astype(dtype))
    normalizer.absorb(normalizer.sums(board))
    assert normalizer(board).std() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("masks", "actions"),
    [
        (spaces.Tuple((spaces.MultiBinary(3), spaces.MultiBinary(2))), spaces.MultiDiscrete([3, 2])),
        (spaces.Dict(action_mask=spaces.MultiBinary(3)), spaces.Discrete(3)),
        (spaces.MultiBinary(3), spaces.Dict(move=spaces.Discrete(3), aim=spaces.Discrete(3))),
        (spaces.MultiBinary(4), spaces.Discrete(3)),
    ],
)
def test_masks_that_would_not_be_obeyed_are_refused(masks, actions):
    space = spaces.Dict(action_mask=masks, seen=spaces.Box(-1.0, 1.0, (2,), np.float32))
    spec = PoolSpec(observation_space=space, action_space=actions, num_envs=1)
    with pytest.raises(UsageError, match="action_mask.* does not fit the actions"):
        ActorCritic(spec, PolicyConfig(hidden=(4,)))
