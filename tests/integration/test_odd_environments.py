"""Environments of users that are unusual, or return what Gymnasium does not want: they train, or say what is wrong."""

from __future__ import annotations

import dataclasses
import logging

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from paceline.accel.perceptron import Perceptron
from paceline.config import Config
from paceline.envs.ids import EnvId
from paceline.envs.registry import resolve
from paceline.errors import SimulatorError, UsageError
from paceline.learner.config import PPOConfig
from paceline.nets.actor_critic import ActorCritic
from paceline.nets.config import PolicyConfig
from paceline.nets.normalizer import ObservationNormalizer
from paceline.nets.scales import warn_of_images
from paceline.pool.auto import probe
from paceline.pool.config import PoolConfig
from paceline.pool.make import make_pool
from paceline.pool.protocol import PoolSpec
from paceline.pool.random_actions import RandomActions, sample_turns
from paceline.recipes.defaults import default_config
from paceline.session import train

CPU = torch.device("cpu")


class SquaredReLU(nn.ReLU):
    """An activation of a user's own. It is a ReLU by inheritance only."""

    def forward(self, x):
        return super().forward(x) ** 2


def test_an_activation_that_inherits_from_a_known_one_is_used_in_acting_too(tmp_path):
    config = Config(
        env="gym:CartPole-v1",
        steps=256,
        rollout_steps=32,
        device="cpu",
        pool=PoolConfig(kind="serial", num_envs=4),
        policy=PolicyConfig(hidden=(16,), activation=f"{__name__}:SquaredReLU"),
        ppo=PPOConfig(epochs=1, minibatches=1),
    )
    run = train(config, tmp_path)
    assert not Perceptron.suits(run.policy, CPU)
    assert abs(run.losses["approx_kl"]) < 1e-6, "the rows were decided by the network that learns"


class Legal(gymnasium.Env):
    """An environment that refuses actions that its mask forbids."""

    def __init__(self, several: bool = False) -> None:
        self.several = several
        count = 6 if several else 4
        self.action_space = spaces.MultiDiscrete([4, 2]) if several else spaces.Discrete(4, start=3)
        self.observation_space = spaces.Dict({"action_mask": spaces.MultiBinary(count), "x": spaces.Box(-1, 1, (2,))})

    def observe(self):
        self.mask = np.zeros(6 if self.several else 4, np.int8)
        self.mask[self.np_random.integers(4)] = 1
        if self.several:
            self.mask[4 + self.np_random.integers(2)] = 1
        return {"action_mask": self.mask, "x": np.zeros(2, np.float32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action):
        chosen = [action[0], 4 + action[1]] if self.several else [action - 3]
        if not self.mask[chosen].all():
            raise ValueError(f"illegal action {action}, mask {self.mask}")
        self.steps += 1
        return self.observe(), 1.0, self.steps == 9, False, {}


@pytest.mark.parametrize("several", [False, True])
def test_measuring_obeys_masks(several):
    """A default run measures one environment. It must not fail at an action that no policy would take."""
    cost = probe(resolve(f"{__name__}:Legal?several={several}"), PoolConfig())
    assert cost.is_safe


def test_random_actions_are_allowed_and_all_of_them():
    with make_pool(f"{__name__}:Legal", PoolConfig(kind="serial", num_envs=3)) as pool:
        actions, seen = RandomActions(pool.spec), set()
        for _ in range(60):
            batch = pool.recv(min_slots=None)
            chosen = actions.next(batch.slots, batch.obs)
            assert batch.obs["action_mask"][np.arange(3), chosen["action"]].all()
            seen |= set(chosen["action"].tolist())
            pool.send(chosen, batch.slots)
        assert seen == {0, 1, 2, 3}


class Masked(gymnasium.Env):
    """Its mask does not fit its actions."""

    def __init__(self, action_space: spaces.Space, size: int) -> None:
        self.action_space = action_space
        self.observation_space = spaces.Dict(action_mask=spaces.MultiBinary(size), x=spaces.Box(-1, 1, (2,)))

    def _observe(self):
        return {"action_mask": np.ones(self.observation_space["action_mask"].shape, np.int8), "x": np.zeros(2)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.steps += 1
        return self._observe(), 1.0, self.steps == 9, False, {}


@pytest.mark.parametrize(
    ("actions", "size"),
    [
        (spaces.MultiBinary(5), 5),
        (spaces.Discrete(3), 6),
        (spaces.Discrete(3), 2),
        (spaces.MultiDiscrete([3, 3]), 3),
        (spaces.Box(-1, 1, (2,)), 2),
    ],
    ids=lambda value: str(value),
)
def test_masks_that_do_not_fit_the_actions_are_refused_by_the_policy_and_not_by_random_actions(actions, size):
    """A default run takes random actions before it makes its policy, whose error says what is allowed."""
    with make_pool(lambda: Masked(actions, size), PoolConfig(kind="serial", num_envs=2)) as pool:
        batch = pool.recv(min_slots=None)
        pool.send(RandomActions(pool.spec).next(batch.slots, batch.obs), batch.slots)
        pool.recv(min_slots=None)
        with pytest.raises(UsageError, match="action_mask.* does not fit the actions"):
            ActorCritic(pool.spec, PolicyConfig(hidden=(4,)))


def test_random_actions_obey_a_mask_of_one_of_several_actions():
    space = spaces.Dict(flags=spaces.MultiBinary(3), move=spaces.Discrete(3))
    with make_pool(lambda: Masked(space, 3), PoolConfig(kind="serial", num_envs=2)) as pool:
        actions, mask = RandomActions(pool.spec), np.eye(3, dtype=np.int8)[[2, 1]]
        assert [actions.next(np.arange(2), {"action_mask": mask})["move"].tolist() for _ in range(9)] == [[2, 1]] * 9


def test_numbers_between_very_wide_bounds_are_drawn_around_0():
    wide = spaces.Box(np.array([-1e10, -1.0, 5e9]), np.array([1e10, 1.0, 1e10]), dtype=np.float64)
    drawn = np.concatenate(sample_turns(wide, 4))
    assert np.abs(drawn[:, 0]).max() < 10 and np.abs(drawn[:, 1]).max() <= 1 and (drawn[:, 2] == 5e9).all()
    assert drawn[:, 0].std() > 0.5 and drawn[:, 1].std() > 0.4


class Returning(gymnasium.Env):
    """Returns what `what` says."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, what: str = "") -> None:
        self.what = what

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        obs = np.zeros(2, np.float32)
        wrong = {"no info": obs, "no info, two parts": (obs, obs), "list": [0.0, 0.0], "empty info": (obs, None)}
        return wrong.get(self.what, (obs, {}))

    def step(self, action):
        self.steps += 1
        rewards = {"array": np.array([1.5]), "none": None, "array of two": np.ones(2)}
        info = None if self.what == "no dictionary" else {}
        return np.zeros(2, np.float32), rewards.get(self.what, 1.0), self.steps == 3, False, info


def play(what: str) -> list[float]:
    with make_pool(lambda: Returning(what), PoolConfig(kind="serial", num_envs=1)) as pool:
        for _ in range(7):
            batch = pool.recv(min_slots=None)
            pool.send(np.zeros(1, np.int64), batch.slots)
        return [episode.episode_return for episode in pool.take_episodes()]


def test_a_reward_in_an_array_of_one_is_a_number():
    assert play("array") == [4.5, 4.5]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("none", "the reward is a NoneType; allowed: a number"),
        ("array of two", r"the reward is a ndarray of shape \(2,\); allowed: a number"),
        ("no dictionary", "info is a NoneType; allowed: a dictionary"),
        ("no info", "reset returned a ndarray; Gymnasium's returns"),
        ("no info, two parts", "the second value of reset is a ndarray; Gymnasium's returns .observation, info."),
        ("empty info", "the second value of reset is a NoneType; .* and info is a dictionary"),
        ("list", "reset returned a list; Gymnasium's returns"),
    ],
)
def test_wrong_results_are_named(what, message):
    with pytest.raises(SimulatorError, match=message):
        play(what)


class Small(gymnasium.Env):
    """Images of 7x7 pixels, as MiniGrid's."""

    observation_space, action_space = spaces.Box(0, 255, (7, 7, 3), np.uint8), spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros((7, 7, 3), np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.zeros((7, 7, 3), np.uint8), 1.0, self.steps == 9, False, {}


def test_small_images_train_by_default(tmp_path):
    config, _ = default_config(f"{__name__}:Small")
    assert config.policy.encoder == "impala"
    small = dataclasses.replace(
        config, steps=64, rollout_steps=16, device="cpu", pool=PoolConfig(num_envs=2, kind="serial")
    )
    assert train(small, tmp_path / "run").step >= 64
    with pytest.raises(UsageError, match="policy.encoder nature needs images of at least 36x36.*allowed: impala"):
        train(dataclasses.replace(small, policy=PolicyConfig(encoder="nature")), tmp_path / "other")


def spec_of(space: spaces.Space) -> PoolSpec:
    return PoolSpec(observation_space=space, action_space=spaces.Discrete(2), num_envs=1)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Box(0, 255, (40, 40, 3), np.float32), "is an image of float32 up to 255"),
        (spaces.Box(0, 65535, (40, 40, 3), np.uint16), "is an image of uint16 up to 65535"),
        (spaces.Box(0, 255, (4, 40, 40, 3), np.uint8), "has 4 dimensions, and is no image"),
        (spaces.Box(0, 255, (40, 40), np.uint8), "has 2 dimensions, and is no image"),
        (spaces.Box(0, 255, (40, 40, 3), np.uint8), None),
        (spaces.Box(0, 1, (40, 40, 3), np.float32), None),
        (spaces.Box(-np.inf, np.inf, (40, 40, 3), np.float32), None),
        (spaces.Box(0, 255, (128,), np.uint8), None),
    ],
)
def test_images_in_unusual_numbers_are_warned_of(caplog, space, message):
    with caplog.at_level(logging.WARNING):
        warn_of_images(spec_of(space), PolicyConfig(), "sim:x", normalizes=False)
    assert (message in caplog.text) if message is not None else caplog.text == ""
    assert message is None or "observation obs of sim:x" in caplog.text


def test_images_that_are_normalised_may_have_any_numbers(caplog):
    with caplog.at_level(logging.WARNING):
        warn_of_images(spec_of(spaces.Box(0, 255, (40, 40, 3), np.float32)), PolicyConfig(), "sim:x", normalizes=True)
    assert caplog.text == ""


@pytest.mark.parametrize("shape", [(6, 7, 2), (2, 6, 7)])
def test_boards_are_normalised_element_by_element(shape):
    """Their planes may be the first dimension or the last."""
    generator = torch.Generator().manual_seed(0)
    boards = (torch.rand(500, *shape, generator=generator) < torch.rand(shape, generator=generator)).float()
    normalizer = ObservationNormalizer(shape, is_board=True)
    normalizer.absorb(normalizer.sums(boards))
    seen = normalizer(boards)
    torch.testing.assert_close(seen.mean(0), torch.zeros(shape), atol=1e-4, rtol=0)
    varying = boards.std(0) > 0
    torch.testing.assert_close(seen.std(0, correction=0)[varying], torch.ones(shape)[varying], atol=1e-4, rtol=0)


def test_boards_of_older_checkpoints_load():
    older, board = ObservationNormalizer((3, 4, 5)), ObservationNormalizer((3, 4, 5), is_board=True)
    older.absorb(older.sums(torch.rand(50, 3, 4, 5)))
    board.load_state_dict(older.state_dict())
    torch.testing.assert_close(board.shift, older.shift.expand(3, 4, 5))
    assert float(board.moments.count) == float(older.moments.count)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("pointnav:full?sensors=depth%2Brgb", {"sensors": "depth+rgb"}),
        ("pointnav:full?sensors=depth+rgb", {"sensors": "depth+rgb"}),
        ("x.y:z?name=a%26b", {"name": "a&b"}),
        ("x.y:z?name='5'&share=10%25", {"name": "5", "share": "10%"}),
        ("x.y:z?a=true&b=None&c=(1, 2)&d=a=b", {"a": True, "b": None, "c": (1, 2), "d": "a=b"}),
    ],
)
def test_a_printed_id_means_the_same(text, options):
    found = EnvId.parse(text)
    assert found.options == options and EnvId.parse(str(found)) == found


def test_an_option_that_is_given_twice_is_refused():
    with pytest.raises(UsageError, match="option 'frameskip' is twice in 'atari:Pong"):
        EnvId.parse("atari:Pong?frameskip=2&frameskip=8")


def test_an_option_that_only_the_simulator_refuses_is_a_usage_error():
    pytest.importorskip("mujoco")
    with pytest.raises((UsageError, SimulatorError), match="nonsense"):
        make_pool("gym:HalfCheetah-v5?nonsense=1", PoolConfig(kind="serial", num_envs=1))


@pytest.mark.parametrize("what", ["observation", "action"])
def test_spaces_without_numbers_are_refused(what):
    empty = spaces.Box(-1, 1, (0,), np.float32)
    made = Returning()
    made.observation_space = empty if what == "observation" else made.observation_space
    made.action_space = empty if what == "action" else made.action_space
    with pytest.raises(UsageError, match=f"the {what} space .* has no numbers"):
        make_pool(lambda: made, PoolConfig(kind="serial", num_envs=1))
