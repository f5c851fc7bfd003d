"""Streams: the same in a batch of any size, after a restart and in a pool."""

import io

import numpy as np
import pytest
import torch

from paceline.pool.tensor import TensorPool
from paceline.sims.navigation.config import PointNavConfig
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.randomness import below, combine, normal, stream_keys
from tests.sims.navigation.rooms import random_steps

NOISY = {"image_noise": 0.05, "gps_noise": 0.1, "actuation_noise": 0.2}


@pytest.mark.parametrize("options", [{}, NOISY, {"gps": False, "slide": False, "sensors": "depth+rgb"}])
def test_batched_and_single_streams_are_identical(options, small_bank):
    config = PointNavConfig(resolution=8, max_episode_steps=15, **options)
    together = Navigation(3, "cpu", config, bank=small_bank)
    singles = [Navigation(1, "cpu", config, bank=small_bank, first_stream=i) for i in range(3)]
    firsts = together.reset(11)
    for i, single in enumerate(singles):
        for name, values in single.reset(11).items():
            assert torch.equal(values[0], firsts[name][i]), name
    num_ends = 0
    for steps in zip(random_steps(together, 60), *(random_steps(single, 60) for single in singles), strict=True):
        for i, single in enumerate(steps[1:]):
            for leaf in ("reward", "terminated", "truncated"):
                assert torch.equal(getattr(single, leaf)[0], getattr(steps[0], leaf)[i]), leaf
            for kind in ("obs", "final_obs"):
                for name, values in getattr(single, kind).items():
                    assert torch.equal(values[0], getattr(steps[0], kind)[name][i]), name
        num_ends += int((steps[0].terminated | steps[0].truncated).sum())
    assert num_ends > 10


def test_seeds_decide_the_streams(small_bank):
    def rows(seed, first=0):
        simulator = Navigation(8, "cpu", PointNavConfig(sensors="blind"), bank=small_bank, first_stream=first)
        simulator.reset(seed)
        found = [simulator._rows.tolist()]
        for _ in range(5):
            simulator.step(torch.zeros(8, dtype=torch.long))
            found.append(simulator._rows.tolist())
        return np.array(found)

    assert (rows(3) == rows(3)).all()
    assert (rows(3) != rows(4)).mean() > 0.9
    assert (rows(3, first=4)[:, :4] == rows(3)[:, 4:]).all()
    assert (rows(2**40 + 3) != rows(3)).mean() > 0.9
    assert len(np.unique(rows(3))) > 40  # streams differ, and so do a stream's episodes


def test_observations_after_an_end_are_those_of_the_next_episode(small_bank):
    """`obs` and `final_obs` differ only where an episode ended: `final_obs` belongs to the old episode."""
    simulator = Navigation(6, "cpu", PointNavConfig(resolution=8, max_episode_steps=9), bank=small_bank)
    simulator.reset(0)
    for step in random_steps(simulator, 40, stop=0.1):
        ended = step.terminated | step.truncated
        for name in step.obs:
            assert torch.equal(step.obs[name][~ended], step.final_obs[name][~ended])
        for i in ended.nonzero()[:, 0].tolist():
            assert not torch.equal(step.obs["goal"][i], step.final_obs["goal"][i])
            assert not torch.equal(step.obs["depth"][i], step.final_obs["depth"][i])
            row = simulator.bank.episodes.view(-1, 6)[simulator._rows[i]]
            assert float(step.obs["goal"][i, 0]) == pytest.approx(float((row[:2] - row[3:5]).norm()), abs=1e-5)


def test_later_steps_do_not_write_to_returned_tensors(small_bank):
    simulator = Navigation(6, "cpu", PointNavConfig(resolution=8, max_episode_steps=5), bank=small_bank)
    simulator.reset(0)
    steps, copies = [], []
    for step in random_steps(simulator, 12):
        steps.append(step)
        copies.append({name: values.clone() for name, values in {**step.final_obs, "reward": step.reward}.items()})
    for step, copy in zip(steps, copies, strict=True):
        for name, values in {**step.final_obs, "reward": step.reward}.items():
            assert torch.equal(values, copy[name])


def test_a_saved_state_continues_exactly(small_bank):
    config = PointNavConfig(resolution=8, max_episode_steps=12, **NOISY)
    simulator = Navigation(5, "cpu", config, bank=small_bank)
    simulator.reset(7)
    simulator.task.set_max_distance(4.0)
    list(random_steps(simulator, 20, seed=1))
    buffer = io.BytesIO()
    torch.save(simulator.state_dict(), buffer)
    want = list(random_steps(simulator, 20, seed=2))
    buffer.seek(0)
    other = Navigation(5, "cpu", config, bank=small_bank)
    other.reset(1)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    for one_step, step in zip(random_steps(other, 20, seed=2), want, strict=True):
        assert torch.equal(one_step.reward, step.reward)
        for name, values in step.obs.items():
            assert torch.equal(one_step.obs[name], values)


def test_a_pool_runs_it(small_bank):
    config = PointNavConfig(resolution=8, max_episode_steps=10)
    with TensorPool([Navigation(4, "cpu", config, bank=small_bank)], seed=2) as pool:
        assert [leaf.name for leaf in pool.spec.obs] == ["depth", "goal", "previous_action"]
        for _ in range(20):
            batch = pool.recv(None)
            pool.send(torch.ones(4, dtype=torch.long), batch.slots)
        pool.recv(None)
        assert [episode.length for episode in pool.take_episodes()] == [10] * 8
        state = pool.state()
        pool.restore(state)


def test_random_numbers_are_uniform_and_depend_on_key_and_counter():
    streams = torch.arange(2000)
    keys = stream_keys(1, streams)
    assert len(set(keys.tolist())) == 2000
    draws = below(combine(keys, 5), 10)
    counts = torch.bincount(draws, minlength=10)
    assert counts.min() > 150
    assert counts.max() < 250
    assert (below(combine(keys, 6), 10) == draws).float().mean() < 0.2
    numbers = normal(combine(keys, 7))
    assert abs(float(numbers.mean())) < 0.1
    assert float(numbers.std()) == pytest.approx(1.0, abs=0.06)
    assert below(torch.tensor([0, 2**32 - 1]), 7).tolist() == [0, 6]
