import numpy as np
import pytest

from paceline.envs.step_costs import ByAction, Constant, HeavyTail, LogNormal, minority


@pytest.mark.parametrize("cost", [Constant(0.02), LogNormal(0.02, 1.0), HeavyTail(0.02, 3.5), ByAction(0.02, 10.0, 5)])
def test_mean_is_the_one_asked_for(cost):
    cost.start(np.random.default_rng(0))
    seconds = [cost.seconds(index % 5) for index in range(200_000)]
    assert min(seconds) > 0
    assert np.mean(seconds) == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("cost", [LogNormal(0.02, 1.0), HeavyTail(0.02, 2.5)])
def test_draws_follow_the_generator(cost):
    streams = []
    for seed in (1, 1, 2):
        cost.start(np.random.default_rng(seed))
        streams.append([cost.seconds(0) for _ in range(1500)])
    assert streams[0] == streams[1] != streams[2]
    assert len(set(streams[0])) == 1500


def test_heavy_tail_is_heavier_than_lognormal_at_the_same_mean():
    rng = np.random.default_rng(0)
    heavy, light = (cost.draw(rng, 100_000) for cost in (HeavyTail(1.0, 1.5), LogNormal(1.0, 0.5)))
    assert heavy.max() > 20 * light.max()
    assert np.median(heavy) < np.median(light)


@pytest.mark.parametrize("fraction", [0.125, 0.1, 0.3, 1.0, 0.0])
def test_minority_is_slow_by_index(fraction):
    costs = np.array([minority(0.02, 10.0, fraction, index).seconds(0) for index in range(80)])
    slow = costs > 1.5 * costs.min() if 0 < fraction < 1 else np.full(80, bool(fraction))
    assert slow.sum() == round(80 * fraction)
    assert costs.mean() == pytest.approx(0.02)
    if 0 < fraction < 1:
        assert costs.max() == pytest.approx(10 * costs.min())
        assert 0 < slow[:40].sum() < slow.sum()  # spread over the indices


def test_costs_by_action_rise_to_slow_times_the_first():
    cost = ByAction(1.0, 8.0, 4)
    assert [cost.seconds(action) / cost.seconds(0) for action in range(4)] == pytest.approx([1, 2, 4, 8])
