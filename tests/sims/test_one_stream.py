"""One stream of a batched simulator: seeds, ends of episodes and saved states."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch

from paceline.pool.tensor import TensorStep
from paceline.sims.one_stream import OneStream, checked_render_mode


class Counting:
    """Every observation is the number of the episode and of the step. Episodes have three steps."""

    def __init__(self) -> None:
        self.seed, self.episode, self.time = 0, -1, 0
        self.last_measures = {"success": torch.tensor([1.0])}

    def reset(self, seed):
        self.seed, self.episode = seed, -1
        return self.begin_next()

    def begin_next(self):
        self.episode, self.time = self.episode + 1, 0
        return self._obs()

    def step(self, actions):
        assert actions.shape == (1,)
        self.time += 1
        final, over = self._obs(), torch.tensor([self.time == 3])
        first = self.begin_next() if over else final
        return TensorStep(first, torch.tensor([2.0]), over, torch.tensor([False]), final)

    def state_dict(self):
        return dict(vars(self))

    def load_state_dict(self, state):
        vars(self).update(state)

    def _obs(self):
        return {"at": torch.tensor([[self.seed, self.episode, self.time]])}


def played(stream: OneStream, steps: int):
    return [stream.step(torch.tensor(0)) for _ in range(steps)]


def test_reset_continues_with_the_episode_that_has_begun():
    stream, random = OneStream(Counting()), np.random.default_rng(0)
    assert stream.reset(5, random)["at"].tolist() == [5, 0, 0]
    *_, (last, reward, terminated, truncated, info) = played(stream, 3)
    assert last["at"].tolist() == [5, 0, 3] and (reward, terminated, truncated) == (2.0, True, False)
    assert info == {"success": 1.0} and stream.is_over
    assert stream.reset(None, random)["at"].tolist() == [5, 1, 0]
    assert stream.reset(None, random)["at"].tolist() == [5, 2, 0], "an episode that has not ended is left"


def test_without_a_seed_one_is_drawn_once():
    stream = OneStream(Counting())
    seed = int(np.random.default_rng(3).integers(2**31))
    assert stream.reset(None, np.random.default_rng(3))["at"].tolist() == [seed, 0, 0]


def test_steps_need_an_episode():
    stream = OneStream(Counting())
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        played(stream, 1)
    stream.reset(1, np.random.default_rng(0))
    with pytest.raises(gymnasium.error.ResetNeeded):
        played(stream, 4)


def test_a_saved_state_continues_exactly():
    stream, other, random = OneStream(Counting()), OneStream(Counting()), np.random.default_rng(0)
    stream.reset(5, random)
    played(stream, 3)
    other.set_state(stream.get_state())
    assert other.is_over and other.reset(None, random)["at"].tolist() == [5, 1, 0]


def test_a_state_of_an_older_run_is_in_an_episode():
    stream, other = OneStream(Counting()), OneStream(Counting())
    stream.reset(5, np.random.default_rng(0))
    played(stream, 1)
    state = stream.get_state()
    del state["is_under_way"]
    other.set_state(state)
    assert played(other, 1)[0][0]["at"].tolist() == [5, 0, 2]


def test_wrong_render_modes_are_refused():
    assert checked_render_mode(None) is None and checked_render_mode("rgb_array") == "rgb_array"
    with pytest.raises(ValueError, match="render_mode 'human' does not exist; allowed: rgb_array, or None"):
        checked_render_mode("human")
