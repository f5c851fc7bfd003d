"""Normalised advantages against NumPy in float64: with a mean far above the deviation, and over ranks of any size."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from paceline.distributed.rank_info import RankInfo
from paceline.distributed.runtime import Group
from paceline.learner.config import OptimizerConfig, PPOConfig
from paceline.learner.ppo import PPOLearner
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from tests.learner.test_ppo import CPU, SPEC, make, make_rollout, prepare

SCALES = [(0.0, 1.0), (100.0, 0.01), (-1e4, 1e-2), (1e4, 1e-2), (1e-3, 1e-6)]


def drawn(mean: float, deviation: float, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, deviation, count).astype(np.float32)


def by_numpy(advantage: np.ndarray) -> np.ndarray:
    exact = advantage.astype(np.float64)
    return (exact - exact.mean()) / exact.std()


class Meeting(Group):
    """Ranks that are threads of this process."""

    def __init__(self, rank: int, barrier: threading.Barrier, board: list) -> None:
        super().__init__(RankInfo(rank=rank, size=barrier.parties), CPU, None)
        self._barrier, self._board = barrier, board

    def sum_(self, values: torch.Tensor) -> torch.Tensor:
        self._board[self.rank] = values.clone()
        self._barrier.wait(10)
        values.copy_(sum(self._board))
        self._barrier.wait(10)
        return values


def normalized_by(group: Group, advantage: np.ndarray) -> np.ndarray:
    """The advantages that a learner of the group trains on."""
    policy = ActorCritic(SPEC, PolicyConfig(hidden=(8,)))
    learner = PPOLearner(policy, group, PPOConfig(normalize_advantage=True), OptimizerConfig())
    rollout = make_rollout(policy, turns=max(1, -(-len(advantage) // SPEC.num_slots)))
    rollout.valid[len(advantage) :] = False
    rollout.advantage[: len(advantage)] = torch.from_numpy(advantage)
    rollout.advantage[len(advantage) :] = 1e9  # rows that are not valid
    prepare(learner, rollout)
    return learner._minibatches.advantage[: len(advantage)].numpy()


@pytest.mark.parametrize(("mean", "deviation"), SCALES)
def test_normalized_advantages_are_those_of_float64(mean, deviation):
    advantage = drawn(mean, deviation, 397)
    found = normalized_by(Group(RankInfo(), CPU, None), advantage)
    np.testing.assert_allclose(found, by_numpy(advantage), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("mean", "deviation"), SCALES)
@pytest.mark.parametrize("counts", [(1, 40, 7), (0, 64)])
def test_normalized_advantages_of_ranks_are_those_of_all_rows_in_one_place(mean, deviation, counts):
    """A rank with more rows weighs more. A rank without rows takes part."""
    parts = np.split(drawn(mean, deviation, sum(counts)), np.cumsum(counts)[:-1])
    if counts[0]:  # and the ranks' own means differ
        parts[0] += np.float32(3 * deviation)
    barrier, board = threading.Barrier(len(counts)), [None] * len(counts)
    with ThreadPoolExecutor(len(counts)) as ranks:
        groups = [Meeting(rank, barrier, board) for rank in range(len(counts))]
        found = np.concatenate(list(ranks.map(normalized_by, groups, parts)))
    np.testing.assert_allclose(found, by_numpy(np.concatenate(parts)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("value", [0.0, 0.1, 100.1, -12345.678, 1e-12])
def test_equal_advantages_are_normalized_to_nothing(value):
    found = normalized_by(Group(RankInfo(), CPU, None), np.full(397, value, np.float32))
    assert np.abs(found).max() < 1e-4


def test_advantages_that_differ_by_rounding_alone_are_not_scaled_up():
    """Two neighbouring float32 numbers, each in half of the rows."""
    value = np.float32(100.1)
    found = normalized_by(Group(RankInfo(), CPU, None), np.tile([value, np.nextafter(value, np.float32(200))], 200))
    assert np.abs(found).max() < 0.1


def test_a_first_update_with_a_large_mean_advantage_has_a_policy_loss_of_nothing():
    """At ratios of 1 the policy loss is minus the mean of the normalised advantages."""
    policy, learner = make(normalize_advantage=True, epochs=1, minibatches=1)
    rollout = make_rollout(policy)
    rollout.advantage.copy_(torch.from_numpy(drawn(100.0, 0.01, len(rollout.advantage))))
    assert learner.update(rollout, 0.0)["policy_loss"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("value", [100.0, 1e4])
def test_vtrace_in_mini_batches_normalizes_advantages_as_float64_does(value):
    """Every advantage is a reward of about 0.01 minus the value."""
    options = {"targets": "vtrace", "trace": "minibatch", "normalize_advantage": True, "discount": 0.0}
    policy, learner = make(**options, epochs=1, minibatches=1, clip=None)
    rollout = make_rollout(policy)
    rollout.reward *= 0.01
    with torch.no_grad():
        policy.critic.weight.zero_()
        policy.critic.bias.fill_(value)
    learner._apply_hyperparameters(0.0)
    minibatches = learner._minibatches
    sample = minibatches.gather(rollout, next(iter(minibatches.split(rollout))))
    _, sums = learner._loss(sample._replace(log_prob=sample.log_prob - 1.0))
    # A log-ratio of 1 and a rho of 1 in every row: the loss is minus the mean of the normalised advantages.
    assert sums[0].item() / sums[-1].item() == pytest.approx(0.0, abs=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_advantages_on_a_gpu_are_normalized_in_a_recording():
    from paceline.learner.advantages import normalize

    device = torch.device("cuda")
    group = Group(RankInfo(), device, None)
    advantage, valid = torch.zeros(397, device=device), torch.ones(397, dtype=torch.bool, device=device)
    normalize(advantage, valid, group)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = normalize(advantage, valid, group)
    for mean, deviation in SCALES:
        advantage.copy_(torch.from_numpy(drawn(mean, deviation, 397)))
        graph.replay()
        np.testing.assert_allclose(found.cpu().numpy(), by_numpy(advantage.cpu().numpy()), rtol=1e-5, atol=1e-5)
