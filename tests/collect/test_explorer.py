"""The noise of `Explorer`: the same for all streams, or drawn anew for each episode."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from paceline.collect.explorer import Explorer
from paceline.errors import UsageError
from paceline.learner.config import D4PGConfig
from paceline.nets.config import ControlConfig, PolicyConfig
from paceline.nets.deterministic import make_deterministic_policy
from paceline.pool import PoolConfig, make_pool
from tests.integration.test_d4pg import LENGTH

ENVS = 60


class Streams:
    """An explorer whose policy always acts 0, so that actions are its noise."""

    def __init__(self, config: D4PGConfig, *, evaluation_envs: int = 0) -> None:
        self._pool = make_pool("tests.integration.envs:Chase", PoolConfig(kind="serial", num_envs=ENVS), seed=0)
        policy = make_deterministic_policy(self._pool.spec, ControlConfig(), PolicyConfig())
        torch.nn.init.zeros_(policy.last.weight)
        device = torch.device("cpu")
        self.explorer = Explorer(
            policy, self._pool.spec, lambda: config, device, seed=0, evaluation_envs=evaluation_envs
        )
        self.batch = self._pool.recv(min_slots=None)

    def play(self, steps: int) -> np.ndarray:
        """[steps, ENVS]: the noise. The environment's actions are between -2 and 2."""
        taken = []
        for _ in range(steps):
            actions = self.explorer.act(self.batch)
            taken.append(next(iter(actions.values())).reshape(ENVS) / 2)
            self._pool.send(actions, self.batch.slots)
            self.batch = self._pool.recv(min_slots=None)
            self.explorer.complete(self.batch)
        return np.stack(taken)


def test_all_streams_have_the_same_noise_by_default():
    noise = Streams(D4PGConfig(noise=0.2), evaluation_envs=10).play(200)
    spread = noise.std(0)
    assert (spread[-10:] == 0).all()
    assert spread[:-10].min() > 0.15 and spread[:-10].max() < 0.25


def test_each_stream_draws_its_noise_anew_in_every_episode():
    """The scale within an episode is constant, differs between streams, and is uniform between the bounds."""
    config = D4PGConfig(noise=0.3, lowest_noise=0.1)
    streams = Streams(config)
    scales = []
    for _ in range(6):
        scales.append(streams.explorer._noise(np.arange(ENVS), config))
        noise = streams.play(LENGTH)
        rows = noise / scales[-1]
        assert rows.std() == pytest.approx(1.0, abs=0.1)
    found = np.stack(scales)
    assert (np.diff(found, axis=0) != 0).all(), "every episode has its own"
    assert found.min() >= 0.1 and found.max() <= 0.3
    assert found.mean() == pytest.approx(0.2, abs=0.02)
    assert abs(np.corrcoef(found[0], found[1])[0, 1]) < 0.4


def test_streams_that_continue_keep_their_noise_and_others_draw_theirs():
    config = D4PGConfig(noise=0.3, lowest_noise=0.1)
    first, second = Streams(config), Streams(config)
    first.play(LENGTH + 1)
    before, saved = second.explorer._boldness.copy(), first.explorer.state_dict()
    second.explorer.load_transitions(saved, np.array([3, 4]))
    after = second.explorer._boldness
    assert (after[[3, 4]] == before[[3, 4]]).all()
    assert (after[5:] == saved["boldness"][5:].numpy()).all() and (after[5:] != before[5:]).all()


@pytest.mark.parametrize("steps", [1, 3])
def test_outcomes_of_decisions_that_were_dropped_teach_nothing(steps):
    """A resumed run may have another `d4pg.steps`. Where agents take turns, decisions are in flight in a checkpoint."""
    first, second = Streams(D4PGConfig(steps=3)), Streams(D4PGConfig(steps=steps))
    first.explorer.act(first.batch)
    second.explorer.load_transitions(first.explorer.state_dict(), np.array([], np.int64))
    ended = dataclasses.replace(second.batch, terminated=np.ones(ENVS, bool))
    found = second.explorer.complete(ended)
    assert (0 if found is None else len(found.reward)) == (ENVS if steps == 3 else 0)
    assert second.explorer.collected == (ENVS if steps == 3 else 0)


def test_the_lowest_noise_is_between_0_and_the_noise():
    with pytest.raises(UsageError, match=r"d4pg.lowest_noise must be at least 0, got -0.1"):
        D4PGConfig(noise=0.3, lowest_noise=-0.1)
    with pytest.raises(UsageError, match=r"d4pg.lowest_noise must be at most d4pg.noise 0.3, got 0.4"):
        Streams(D4PGConfig(noise=0.3, lowest_noise=0.4))


def test_a_noise_that_falls_below_the_lowest_one_holds_for_all():
    """As population-based training may change it during a run."""
    streams = Streams(D4PGConfig(noise=0.3, lowest_noise=0.1))
    assert (
        streams.explorer._noise(np.arange(ENVS), D4PGConfig(noise=0.05, lowest_noise=0.1)) == np.float32(0.05)
    ).all()
