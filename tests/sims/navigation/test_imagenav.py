"""ImageNav: the picture is the one seen at the goal, in every process, and follows the episode."""

import math

import numpy as np
import torch

from paceline.sims.navigation.config import ImageNavConfig, PointNavConfig
from paceline.sims.navigation.evaluation.baselines import play_baseline
from paceline.sims.navigation.evaluation.imagenav import EVALUATION
from paceline.sims.navigation.rendering import render
from paceline.sims.navigation.simulator import Navigation
from paceline.sims.randomness import MASK, combine, mix
from tests.sims.navigation.rooms import random_steps


def make(bank, **options):
    return Navigation(5, "cpu", ImageNavConfig(resolution=12, max_episode_steps=9, **options), bank=bank)


def picture_of(bank, row):
    """The depth at the goal of an episode, rendered on its own."""
    scene, episode = divmod(row, bank.num_episodes)
    key = combine(mix(int(bank.seeds[scene]) & MASK), episode)
    x, y = bank.episodes[scene, episode, 3:5].tolist()
    pose = torch.tensor([[x, y, np.float32(key) * 2 * math.pi / 2**32]], dtype=torch.float32)
    return render.trace(bank, render.Camera(12), torch.tensor([scene]), pose).depth[0]


def test_the_picture_is_the_view_at_the_goal(small_bank):
    simulator = make(small_bank)
    obs, rows = simulator.reset(0), simulator.rows.tolist()
    num_ends = 0
    for step in random_steps(simulator, 40):
        for stream in range(5):
            torch.testing.assert_close(
                obs["goal_depth"][stream, 0], picture_of(small_bank, rows[stream]), rtol=0, atol=1e-4
            )
        assert torch.equal(step.final_obs["goal_depth"], obs["goal_depth"])
        obs, rows = step.obs, simulator.rows.tolist()
        num_ends += int((step.terminated | step.truncated).sum())
    assert num_ends > 15


def test_everything_else_is_pointnav(small_bank):
    image = make(small_bank, sensors="rgb")
    point = Navigation(5, "cpu", PointNavConfig(resolution=12, max_episode_steps=9, sensors="rgb"), bank=small_bank)
    assert set(image.reset(3)) == {"rgb", "goal_rgb", "previous_action"}
    point.reset(3)
    for one, other in zip(random_steps(image, 30), random_steps(point, 30), strict=True):
        assert torch.equal(one.reward, other.reward) and torch.equal(one.obs["rgb"], other.obs["rgb"])
        for name, values in point.last_measures.items():
            assert torch.equal(image.last_measures[name], values)


def test_the_oracle_finds_the_place(small_bank):
    result = play_baseline(EVALUATION, "oracle", ImageNavConfig(split="val", resolution=8), 24, bank=small_bank)
    assert result["success"] == 1.0 and result["spl"] > 0.95
